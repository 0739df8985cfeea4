// The calls of an answer: each gets its result by the reader's hand, or from the MCP server that has the
// tool, once the reader has allowed it for this time or for this conversation.

import { element } from "./dom.js";
import { failure } from "./turns.js";

const MOST_ROUNDS = 20; // of calls without the reader, between two of their messages

const permission = ({ session, tool }) => `${session.url} ${tool.name}`;

// Whether a conversation's calls of a tool run without a question.
const isAllowed = (conversation, found) => (conversation.allowed ?? []).includes(permission(found));

// Rounds of calls since the reader's last message.
export const rounds = (turns) => turns.length - 1 - turns.findLastIndex(({ role }) => role === "user");

// Asks for the results of a turn's calls, in a form at the end of an item.
// conversation: remembers what the reader allows. toolOf: of a call's name, {session, tool} or undefined.
// whileBusy: runs work that Stop ends. keep: stores the conversation. done: takes [call, result] of each.
export class CallForm {
  constructor({ turn, item, conversation, toolOf, whileBusy, keep, done }) {
    Object.assign(this, { conversation, whileBusy, keep, done });
    this.rows = turn.calls.map((call, index) => this.row(call, `result-${turn.id}-${index}`, toolOf(call.name)));
    this.form = element("form", { class: "call" }, ...this.rows.map(({ place }) => place), element("button", {}, "Send results"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    item.append(this.form);
  }

  get isTouched() {
    return this.rows.some(({ field, isDone }) => isDone || field.value);
  }

  row(call, id, found) {
    const field = element("textarea", { id, rows: "2" });
    const place = element("div", { class: "result" }, element("label", { for: id }, `Result of ${call.name}`), field);
    const row = { call, field, found, place, isDone: false, trouble: null };
    if (found) place.append(this.choices(row));
    return row;
  }

  choices(row) {
    const { session, tool } = row.found;
    const button = (words, work) => {
      const made = element("button", { type: "button", class: "plain" }, words);
      made.addEventListener("click", work);
      return made;
    };
    const once = button("Run once", () => this.run([row]));
    const always = button("Allow in this conversation", () => {
      this.conversation.allowed = [...(this.conversation.allowed ?? []), permission(row.found)];
      this.keep();
      this.run(this.rows.filter((each) => each.found && !each.isDone && isAllowed(this.conversation, each.found)));
    });
    row.buttons = element("div", { class: "buttons" }, once, always);
    return element("div", {}, element("p", { class: "quiet" }, `${tool.name} runs on ${session.name || session.origin} (${session.url})`), row.buttons);
  }

  // Runs the calls that the reader has allowed for this conversation, unless too many rounds have run.
  runAllowed(rounds) {
    const rows = this.rows.filter(({ found }) => found && isAllowed(this.conversation, found));
    if (rows.length && rounds <= MOST_ROUNDS) this.run(rows);
  }

  async run(rows) {
    const isComplete = await this.whileBusy(async (signal) => {
      for (const row of rows) if (!(await this.one(row, signal))) return false;
      return true;
    }, "A tool runs");
    if (isComplete && this.rows.every(({ isDone }) => isDone)) this.send();
  }

  // Runs one call. Returns whether it has a result.
  async one(row, signal) {
    row.trouble?.remove();
    try {
      const { text, isError } = await row.found.session.call(row.found.tool.name, argumentsOf(row.call), signal);
      row.field.value = text;
      row.isDone = true;
      row.buttons.hidden = true;
      if (isError) row.place.append(failure(`${row.call.name} failed; the model reads its message.`));
      return true;
    } catch (error) {
      row.trouble = failure(signal.aborted ? "Stopped before its result." : error.message);
      row.place.append(row.trouble);
      return false;
    }
  }

  send() {
    this.done(this.rows.map(({ call, field }) => [call, field.value]));
  }
}

function argumentsOf(call) {
  let found;
  try {
    found = JSON.parse(call.arguments || "{}");
  } catch (error) {
    throw new Error(`The model's arguments are no JSON (${error.message}); answer by hand.`);
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error("The model's arguments are no JSON object; answer by hand.");
  return found;
}
