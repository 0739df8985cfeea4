// Turns of the conversation as elements, with what a reader does to each: copy, edit, ask again,
// look at another branch.

import { copied } from "./code.js";
import { byId, element, seconds, sendByEnter, whole } from "./dom.js";
import { shown } from "./files.js";
import { render } from "./markdown.js";
import { partsBar } from "./parts.js";
import { branch } from "./tree.js";

const NAMES = { user: "You", tool: "Result", assistant: "Model" };

// name: of a column beside another answer.
export const heading = ({ role, model, name }) =>
  element("h2", {}, role === "assistant" && (name ?? model) ? `${NAMES.assistant} ${name ?? model}` : NAMES[role]);

export const failure = (text) => element("p", { class: "failed", role: "alert" }, text);

// Draws one turn at the end of the log. acts: edit, again and switchTo, each called with the turn.
export function drawTurn(conversation, turn, acts) {
  const text = element("div", { class: "text" });
  const item = element("li", { class: `turn ${turn.role}` }, heading(turn));
  if (turn.files?.length) item.append(element("ul", { class: "files" }, ...turn.files.map((file) => element("li", {}, ...shown(file)))));
  item.append(text);
  byId("log").append(item);
  if (turn.role !== "assistant") {
    text.textContent = turn.text;
    item.append(buttons(conversation, turn, acts, item));
    return item;
  }
  text.classList.add("rendered");
  if (turn.reasoning) text.before(folded(turn.reasoning));
  if (turn.text) render(turn.text, text);
  for (const call of turn.calls ?? []) item.append(drawCall(call));
  if (turn.error) item.append(failure(turn.error));
  finish(conversation, turn, acts, item);
  return item;
}

// Adds what an answer has once it is complete: its figures, and buttons.
export function finish(conversation, turn, acts, item) {
  item.append(...figures(turn), buttons(conversation, turn, acts, item));
}

// The figures of a complete answer: its tokens and speed, and where its time went.
export const figures = (turn) => [
  ...(turn.moves ?? []).map(margin),
  element("p", { class: "foot" }, summary(turn)), ...(turn.timings ? [partsBar(turn.timings)] : []),
];

// In the margin: the server that ended in the middle of the answer, and the one that continued it.
const margin = ({ ended, went_on: other, tokens }) =>
  element("p", { class: "margin", role: "note" }, `${ended} ended after ${whole(tokens)} tokens; ${other} went on.`);

export function folded(reasoning) {
  return element("details", { class: "thought" }, element("summary", {}, "Reasoning"), element("div", { class: "text" }, reasoning));
}

export function drawCall(call) {
  return element("section", { class: "call", "aria-label": `Call of ${call.name}` },
    element("strong", {}, call.name), element("pre", {}, call.arguments));
}

// Figures of an answer: tokens, those of the prompt and its pictures, speed, and how it ended.
export function summary(turn) {
  const parts = [];
  const { usage, times, timings } = turn;
  const answer = timings ? timings.predicted_ms / 1000 : times?.answer; // the server's own, if it tells it
  if (usage) {
    parts.push(`${whole(usage.completion_tokens)} tokens`);
    // An answer that came at once tells nothing of the speed.
    if (usage.completion_tokens > 1 && answer > 0.05) parts.push(`${((usage.completion_tokens - 1) / answer).toFixed(1)} tokens/s`);
    const pictures = usage.prompt_tokens_details?.image_tokens;
    parts.push(`prompt ${whole(usage.prompt_tokens)}${pictures ? ` (${whole(pictures)} of pictures)` : ""}`);
  }
  if (times?.first !== undefined) parts.push(`first after ${seconds(times.first)}`);
  if (turn.state === "stopped") parts.push("stopped");
  if (turn.state === "left") parts.push("cut by a reload of the page");
  if (turn.state === "length") parts.push("cut at the most tokens");
  return parts.join(" · ");
}

function buttons(conversation, turn, acts, item) {
  const row = element("div", { class: "acts" });
  const [which, many] = branch(conversation, turn);
  if (many > 1) {
    const name = turn.role === "assistant" ? "answer" : "version";
    const step = (words, by, mark) => act(words, () => acts.switchTo(turn, by), mark);
    const before = step(`Previous ${name}`, -1, "‹");
    const after = step(`Next ${name}`, 1, "›");
    before.disabled = which === 1;
    after.disabled = which === many;
    row.append(before, element("span", { class: "which" }, `${which} of ${many}`), after);
  }
  if (turn.text) {
    const copy = act("Copy text", async () => {
      copy.textContent = (await copied(turn.text)) ? "Copied text" : "Select and copy";
    });
    row.append(copy);
  }
  if (turn.role === "user") row.append(act("Edit", () => edit(turn, acts, item)));
  if (turn.role === "assistant") row.append(act("Answer again", () => acts.again(turn)));
  return row;
}

function act(name, work, mark) {
  const made = element("button", { type: "button", class: "act", ...(mark ? { "aria-label": name } : {}) }, mark ?? name);
  made.addEventListener("click", work);
  return made;
}

function edit(turn, acts, item) {
  const field = element("textarea", { "aria-label": "Edited message", rows: "3" });
  field.value = turn.text;
  const form = element("form", { class: "edit", "aria-label": "Edit message" }, field,
    element("div", { class: "buttons" }, act("Cancel", () => form.replaceWith(...hidden)), element("button", {}, "Send edited")));
  const hidden = [item.querySelector(".text"), item.querySelector(".acts")];
  hidden[1].remove();
  hidden[0].replaceWith(form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim() || turn.files?.length) acts.edit(turn, field.value.trim());
  });
  sendByEnter(field);
  field.focus();
}
