// Two answers side by side: the same conversation is asked twice, with another model, adapter or
// seed, and both answers stream at once. They are branches of one turn; either may be followed.

import { Answer } from "./answer.js";
import { chat } from "./api.js";
import { byId, element } from "./dom.js";
import { cardsThatChat, chosenModel } from "./models.js";
import { add } from "./tree.js";
import { failure, figures } from "./turns.js";

const SEEDS = 2 ** 31;

// The difference of the second answer; null if one answer is asked.
export const secondChoice = () => byId("second").value || null;

// Fills the list of second answers: the same model with another seed, and each other model.
export function showChoices() {
  const list = byId("second");
  const before = list.value;
  const others = cardsThatChat().filter(({ id }) => id !== chosenModel());
  list.replaceChildren(
    element("option", { value: "" }, "One answer"),
    element("option", { value: "seed" }, "Two answers: another seed"),
    ...others.map(({ id }) => element("option", { value: `model:${id}` }, `Two answers: ${id}`)));
  list.value = [...list.options].some(({ value }) => value === before) ? before : "";
}

// The two requests: [body, name of its column] of each.
export function pair(body, choice) {
  if (choice.startsWith("model:")) {
    const other = choice.slice("model:".length);
    return [[body, body.model ?? "this model"], [{ ...body, model: other }, other]];
  }
  const seed = body.seed ?? Math.floor(Math.random() * SEEDS);
  return [seed, (seed + 1) % SEEDS].map((each) => [{ ...body, seed: each }, `seed ${each}`]);
}

// Asks both at once, in columns of one item of the log. Returns the answers, once they have ended, and
// the item. signal: ends both.
export async function askBoth(conversation, parent, requests, signal, save) {
  const item = element("li", { class: "turn beside", "aria-label": "Two answers side by side" });
  byId("log").append(item);
  const answers = await Promise.all(requests.map(async ([body, name]) => {
    const turn = add(conversation, parent, { role: "assistant", text: "", state: "running", model: body.model, name });
    const place = element("section", { class: "side", "aria-label": `Answer of ${name}` });
    item.append(place);
    const shown = new Answer(turn, save, place);
    await shown.stream(() => chat(body, signal));
    shown.item.append(...(turn.error ? [failure(turn.error)] : figures(turn)));
    return shown;
  }));
  return { answers, item };
}

// Adds a button to each column, by which its answer is the one that the conversation continues.
export function letChoose(turns, item, follow) {
  turns.forEach((turn, index) => {
    const button = element("button", { type: "button", class: "act" }, `Continue with ${turn.name}`);
    button.addEventListener("click", () => follow(turn));
    item.children[index].append(button);
  });
}
