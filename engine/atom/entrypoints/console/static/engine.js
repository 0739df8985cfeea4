// The server's state, its start-up, and the engine's figures, asked for while the page is seen.

import { getJson, getText, health } from "./api.js";
import { plot } from "./charts.js";
import { byId, bytes, element, fill, percent, seconds, whole } from "./dom.js";
import { grownShare, median, ofTier, parse, rate } from "./figures.js";
import { severalModels, showModels } from "./models.js";

const POLL_MS = 2000;
const MINUTE = 60;
const readings = [];
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
  if (progress.seconds_left !== null) parts.push(`about ${seconds(progress.seconds_left)} left`);
  if (progress.stalled) parts.push("nothing has moved for long");
  byId("phase-detail").textContent = parts.join(" · ");
}

function showFigures(now) {
  const before = readings.at(-1);
  readings.push(now);
  while (now.at - readings[0].at > MINUTE) readings.shift();
  const value = (name) => now.sums.get(`atom:${name}`) ?? 0;
  const speed = before ? rate(now, before, "atom:generation_tokens_total") : 0;
  const first = median(now, readings[0] === now ? null : readings[0], "atom:time_to_first_token_seconds_bucket");
  const minute = readings[0] === now ? undefined : readings[0];
  const [used, total] = [value("kv_cache_blocks_used"), value("kv_cache_blocks_total")];
  const drafted = value("spec_decode_num_draft_tokens_total");
  const share = total ? used / total : 0;
  const count = (amount) => (amount < 10 ? amount.toFixed(1) : whole(amount));
  plot("Tokens a second", [""], [speed], count);
  plot("Requests", ["running", "waiting"], [value("requests_running"), value("requests_waiting")], whole);
  plot("Time to first token", [""], [first], seconds);
  plotCaches(now, minute, share);
  const rows = [
    ["Running", whole(value("requests_running"))],
    ["Waiting", whole(value("requests_waiting"))],
    ["Tokens a second", count(speed)],
    ["Time to first token", first === undefined ? "–" : seconds(first)],
    ["KV blocks used", `${whole(used)} of ${whole(total)} (${percent(share)})`],
    ["Prompt tokens found cached", percent(value("prefix_cache_hit_ratio"))],
    ["Drafts accepted", drafted ? percent(value("spec_decode_num_accepted_tokens_total") / drafted) : "no drafts"],
  ];
  fill(byId("figures"), rows);
}

// KV cache used, by tier; prompt tokens that it had, and drafts that held, in the last minute.
function plotCaches(now, minute, share) {
  const tiers = ["host", "disk"].map((tier) => [tier, ofTier(now, "atom:kv_offload_usage_ratio", tier)])
    .filter(([, used]) => used !== undefined);
  const names = tiers.length ? ["device", ...tiers.map(([tier]) => tier)] : [""];
  plot("KV cache used", names, [share, ...tiers.map(([, used]) => used)], percent);
  const grown = (part, whole) => grownShare(now, minute, `atom:${part}_total`, `atom:${whole}_total`);
  plot("Prefix-cache hits", [""], [grown("prefix_cache_cached_tokens", "prefix_cache_full_tokens")], percent);
  if (!now.sums.has("atom:spec_decode_num_draft_tokens_total")) return;
  plot("Drafts kept", [""], [grown("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens")], percent);
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
