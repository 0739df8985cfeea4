// The server's state, its start-up, and the engine's figures, asked for while the page is seen.

import { getJson, getText, health } from "./api.js";
import { byId, bytes, element, fill, percent, seconds, whole } from "./dom.js";
import { median, parse, rate } from "./figures.js";
import { severalModels, showModels } from "./models.js";

const POLL_MS = 2000;
const TRACE_POINTS = 60;
const MINUTE = 60;
const readings = [];
const speeds = [];
let infoShown = false;
let lastReason = "";

export async function startEngine() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

async function look() {
  const state = await health();
  showState(state);
  if (!state || state.status === "starting") return;
  try {
    showFigures(parse(await getText("metrics")));
    if (!infoShown) await showInfo();
  } catch (error) {
    lastReason = error.message; // it ends: the next look says more
  }
}

function showState(state) {
  const word = state?.status ?? "away";
  const shown = byId("state");
  const text = word === "away" ? "not reachable" : word;
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = word;
  byId("starting").hidden = word !== "starting";
  if (word === "starting") showStart(state);
  const trouble = ["dead", "stalled", "draining", "away"].includes(word);
  if (trouble && state) lastReason = state.reason;
  notice(trouble ? troubleText(word, state) : "");
}

function troubleText(word, state) {
  if (state) return `The engine is ${word}: ${state.reason}`;
  const last = lastReason ? ` The last that it said: ${lastReason}` : "";
  return `The server does not answer; this page goes on asking.${last}`;
}

export function notice(text) {
  const shown = byId("notice");
  if (shown.textContent !== text) shown.textContent = text;
  shown.hidden = !text;
}

function showStart({ reason, progress }) {
  byId("phase").textContent = `Starting: ${reason}`;
  const bar = byId("phase-progress");
  if (!progress) return;
  if (progress.fraction > 0) bar.value = progress.fraction;
  else bar.removeAttribute("value");
  const parts = [`${seconds(progress.elapsed_seconds)} so far`];
  if (progress.bytes_total) {
    parts.push(`${bytes(progress.bytes_done)} of ${bytes(progress.bytes_total)}`);
    if (progress.bytes_per_second) parts.push(`${bytes(progress.bytes_per_second)}/s`);
  }
  if (progress.stalled) parts.push("nothing has moved for long");
  byId("phase-detail").textContent = parts.join(" · ");
}

function showFigures(now) {
  const before = readings.at(-1);
  readings.push(now);
  while (now.at - readings[0].at > MINUTE) readings.shift();
  const value = (name) => now.sums.get(`atom:${name}`) ?? 0;
  const speed = before ? rate(now, before, "atom:generation_tokens_total") : 0;
  trace(speed);
  const first = median(now, readings[0] === now ? null : readings[0], "atom:time_to_first_token_seconds_bucket");
  const [used, total] = [value("kv_cache_blocks_used"), value("kv_cache_blocks_total")];
  const drafted = value("spec_decode_num_draft_tokens_total");
  fill(byId("figures"), [
    ["Running", whole(value("requests_running"))],
    ["Waiting", whole(value("requests_waiting"))],
    ["Tokens a second", speed < 10 ? speed.toFixed(1) : whole(speed)],
    ["Time to first token", first === undefined ? "–" : seconds(first)],
    ["KV blocks used", `${whole(used)} of ${whole(total)} (${percent(total ? used / total : 0)})`],
    ["Prompt tokens found cached", percent(value("prefix_cache_hit_ratio"))],
    ["Drafts accepted", drafted ? percent(value("spec_decode_num_accepted_tokens_total") / drafted) : "no drafts"],
  ]);
}

function trace(speed) {
  speeds.push(speed);
  if (speeds.length > TRACE_POINTS) speeds.shift();
  const most = Math.max(...speeds, 1);
  const step = 240 / (TRACE_POINTS - 1);
  const begin = 240 - (speeds.length - 1) * step;
  const points = speeds.map((each, index) => `${(begin + index * step).toFixed(1)},${(46 - (44 * each) / most).toFixed(1)}`);
  byId("trace").querySelector("polyline").setAttribute("points", points.join(" "));
}

async function showInfo() {
  await showModels();
  infoShown = true;
  byId("room").hidden = severalModels();
  if (severalModels()) return; // each has facts of its own, and to ask for them would wake it up
  const info = await getJson("server_info");
  byId("room-rows").replaceChildren(...info.concurrency.map((row) =>
    element("tr", {}, element("td", {}, whole(row.context_tokens)), element("td", {}, whole(row.sequences)))));
  fill(byId("facts"), [
    ["Context", `${whole(info.max_model_len)} tokens`],
    ["KV cache", `${whole(info.kv_tokens)} tokens, ${bytes(info.kv_cache_bytes)}`],
    ["Weights", bytes(info.weights_bytes)],
    ["Device", info.device],
    ["Started in", info.startup_seconds ? seconds(info.startup_seconds) : "–"],
  ]);
}
