// The settings of requests, kept in this browser.

import { byId } from "./dom.js";

const KEY = "atom-settings";
const FIELDS = ["system", "temperature", "top-p", "max-tokens", "seed", "tools"];

export function startSettings() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    // none, or damaged ones: the fields stay empty
  }
  for (const id of FIELDS) {
    if (typeof kept[id] === "string") byId(id).value = kept[id];
    byId(id).addEventListener("input", keepSettings);
  }
  byId("defaults").addEventListener("click", () => {
    for (const id of FIELDS) byId(id).value = "";
    keepSettings();
  });
}

function keepSettings() {
  localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(FIELDS.map((id) => [id, byId(id).value]))));
}
