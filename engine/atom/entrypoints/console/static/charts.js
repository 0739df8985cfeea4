// Small charts of the last minutes: each has its newest value, its highest, and a time axis.

import { byId, element } from "./dom.js";

const POINTS = 90; // readings
const WIDTH = 240;
const HEIGHT = 40;
const charts = new Map();

// Adds a reading to the chart of this name, which is made with its first one, and anew for other lines.
// values: one for each line, undefined for nothing to tell; lines: their names; write: a value in words.
export function plot(name, lines, values, write) {
  const known = charts.get(name);
  const chart = known?.lines.length === lines.length ? known : made(name, lines, known);
  const now = Date.now();
  chart.readings.push({ now, values });
  if (chart.readings.length > POINTS) chart.readings.shift();
  const most = Math.max(0, ...chart.readings.flatMap((each) => each.values.filter((value) => value !== undefined)));
  const begin = chart.readings[0].now;
  const span = Math.max(1, now - begin);
  chart.lines.forEach((line, index) => {
    const points = chart.readings.filter((each) => each.values[index] !== undefined).map((each) =>
      `${((WIDTH * (each.now - begin)) / span).toFixed(1)},${(HEIGHT - 1 - ((HEIGHT - 3) * each.values[index]) / (most || 1)).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
  });
  const parts = lines.map((line, index) => `${line ? `${line} ` : ""}${values[index] === undefined ? "–" : write(values[index])}`);
  const told = parts.join(", ");
  if (lines.length === 1) chart.now.textContent = told;
  else chart.now.replaceChildren(...parts.map((part, index) => element("span", { class: `key line-${index}` }, part)));
  chart.most.textContent = `most ${write(most)}`;
  chart.since.textContent = span < 90_000 ? `${Math.round(span / 1000)} s ago` : `${(span / 60_000).toFixed(1)} min ago`;
  chart.picture.setAttribute("aria-label", `${name} since ${chart.since.textContent}: now ${told}, at most ${write(most)}`);
}

function made(name, lines, before) {
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const chart = {
    picture, readings: [], lines: lines.map((_, index) => drawn("polyline", { class: `line-${index}` })),
    now: element("span", { class: "now" }), most: element("span"), since: element("span"),
  };
  picture.append(...chart.lines);
  chart.figure = element("figure", { class: "chart" },
    element("figcaption", {}, element("span", {}, name), chart.now), picture,
    element("div", { class: "axis" }, chart.since, chart.most, element("span", {}, "now")));
  if (before) before.figure.replaceWith(chart.figure);
  else byId("charts").append(chart.figure);
  charts.set(name, chart);
  return chart;
}

function drawn(name, attributes) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
  return shape;
}
