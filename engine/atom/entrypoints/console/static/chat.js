// The conversation that is open: what is sent, the answer that comes, and the branches.

import { Answer } from "./answer.js";
import { ApiError, chat } from "./api.js";
import { askBoth, letChoose, pair, secondChoice } from "./beside.js";
import { CallForm, rounds } from "./calls.js";
import { byId, element, numberIn, sendByEnter } from "./dom.js";
import { attached, setFiles, startFiles, takeFiles } from "./files.js";
import { chosenModel } from "./models.js";
import { toolOf, toolsOffered } from "./servers.js";
import { forget, keep, noteOpen, openBefore } from "./store.js";
import { add, choose, following, last, messages, newConversation, path, remove } from "./tree.js";
import { drawTurn, failure, finish } from "./turns.js";

let conversation = newConversation();
let running = null; // AbortController of the answer that comes
const ENDED = new Set(["done", "length"]); // by the model, so that its calls are complete or as far as they go
let calls = null; // the form of the calls that wait for results
let leaving = false; // the page ends, and with it the answer's stream: that is no failure
let needsKey = () => {};
let changed = () => {};

// onChange: called when a conversation was kept; askKey: when the server refuses the key.
export function startChat({ askKey, onChange }) {
  needsKey = askKey;
  changed = onChange;
  startFiles();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("message").value.trim();
    if ((!text && !attached().length) || running) return;
    byId("message").value = "";
    add(conversation, last(conversation), { role: "user", text, files: takeFiles() });
    answer();
  });
  sendByEnter(byId("message"));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  addEventListener("pageshow", () => (leaving = false));
  addEventListener("pagehide", () => {
    leaving = true;
    if (running) save();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    open(newConversation());
    byId("message").focus();
  });
  byId("ask-again").addEventListener("click", () => {
    delete conversation.allowed;
    byId("ask-again").hidden = true;
    byId("message").focus();
    store();
  });
}

// Shows the calls that wait for results anew, with the tools that there are now.
export function toolsChanged() {
  if (calls && !running && !calls.isTouched) draw();
}

// Shows the conversation that was open before a reload, with the answer as far as it had come.
export function openLast() {
  const before = openBefore();
  if (before && !Object.keys(conversation.turns).length) open(before);
}

export const openId = () => conversation.id;

export function open(other) {
  running?.abort();
  conversation = other;
  for (const turn of Object.values(conversation.turns)) if (turn.state === "running") turn.state = "left";
  noteOpen(conversation.id);
  draw();
  changed();
}

const acts = {
  edit(turn, text) {
    if (running) return;
    add(conversation, turn.parent, { role: "user", text, files: turn.files ?? [] });
    answer();
  },
  again(turn) {
    if (running) return;
    delete conversation.chosen[turn.parent];
    answer();
  },
  switchTo(turn, by) {
    if (running) return;
    choose(conversation, turn, by);
    store();
    draw();
  },
};

function draw() {
  byId("log").replaceChildren();
  byId("ask-again").hidden = !conversation.allowed?.length;
  calls = null;
  const shown = path(conversation);
  byId("empty").hidden = shown.length > 0;
  let item = null;
  for (const turn of shown) item = drawTurn(conversation, turn, acts);
  const end = shown.at(-1);
  if (end?.calls?.length && ENDED.has(end.state)) askForResults(end, item);
  item?.scrollIntoView({ block: "end" });
}

async function store() {
  await save();
  changed();
}

// Stores the conversation without telling of it: its row of the list is as before.
async function save() {
  conversation.changed = Date.now();
  try {
    noteOpen(conversation.id);
    await (Object.keys(conversation.turns).length ? keep(conversation) : forget(conversation.id));
  } catch {
    byId("kept-note").hidden = false; // the browser's space is used up
  }
}

function request(upTo) {
  const system = byId("system").value.trim();
  const tools = [...typedTools(), ...toolsOffered(typedNames())];
  const body = {
    model: chosenModel() ?? undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages(conversation, upTo)],
    temperature: numberIn("temperature"),
    top_p: numberIn("top-p"),
    max_tokens: numberIn("max-tokens"),
    seed: numberIn("seed"),
  };
  if (tools.length) body.tools = tools;
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined));
}

// The tools of the settings.
function typedTools() {
  const text = byId("tools").value.trim();
  if (!text) return [];
  try {
    return [JSON.parse(text)].flat();
  } catch (error) {
    throw new ApiError(0, `the tools are no JSON: ${error.message}`);
  }
}

function typedNames() {
  try {
    return new Set(typedTools().map((tool) => tool?.function?.name));
  } catch {
    return new Set();
  }
}

// Draws the conversation, and asks for what follows its last turn: one answer, or two.
function answer() {
  draw();
  return secondChoice() ? answerTwice() : answerOnce();
}

// Lets Stop end the work, and no other begin before it has ended. words: that tell of it.
async function whileBusy(work, words = "The model answers") {
  if (running) return null;
  running = new AbortController();
  setBusy(true, words);
  try {
    return await work(running.signal);
  } finally {
    if (!leaving) {
      running = null;
      setBusy(false, "The answer is complete");
    }
  }
}

async function answerTwice() {
  const mine = conversation;
  const parent = last(mine);
  let requests = null;
  try {
    requests = pair(request(parent), secondChoice());
  } catch (error) {
    byId("log").append(element("li", { class: "turn assistant" }, failure(error.message))); // tools that are no JSON
    store();
    return;
  }
  const { answers, item } = await whileBusy((signal) => askBoth(mine, parent, requests, signal, save));
  if (leaving) return;
  if (answers.some(({ status }) => status === 401)) needsKey();
  const refused = answers.filter(({ isRefused }) => isRefused);
  for (const { turn } of refused) remove(mine, turn.id);
  if (mine !== conversation) {
    await keep(mine).catch(() => {});
    return;
  }
  if (!refused.length) {
    letChoose(answers.map(({ turn }) => turn), item, (turn) => {
      if (running) return;
      mine.chosen[parent] = turn.id;
      store();
      draw();
      byId("message").focus();
    });
  }
  store();
}

async function answerOnce() {
  const mine = conversation; // another may be opened while this one's answer ends
  const parent = last(mine);
  const asked = mine.turns[parent];
  const turn = add(mine, parent, { role: "assistant", text: "", state: "running", model: chosenModel() });
  const shown = new Answer(turn, save);
  store();
  await whileBusy((signal) => shown.stream(() => chat(request(parent), signal)));
  if (leaving) return;
  if (shown.status === 401) needsKey();
  if (mine !== conversation) {
    await keep(mine).catch(() => {});
    return;
  }
  if (shown.isRefused) giveBack(turn, asked);
  else {
    if (turn.error) shown.item.append(failure(turn.error));
    finish(conversation, turn, acts, shown.item);
    shown.follow();
    if (turn.calls?.length && ENDED.has(turn.state)) {
      askForResults(turn, shown.item);
      calls.runAllowed(rounds(path(conversation)));
    }
  }
  store();
}

// Takes back a message that was refused, so that it can be sent again.
function giveBack(turn, asked) {
  remove(conversation, turn.id);
  if (asked.role === "user" && !following(conversation, asked.id).length) {
    remove(conversation, asked.id);
    byId("message").value = asked.text;
    setFiles(asked.files ?? []);
  }
  draw();
  byId("empty").hidden = true;
  byId("log").append(element("li", { class: "turn assistant" }, failure(turn.error)));
}

function setBusy(busy, words) {
  byId("stop").hidden = !busy;
  byId("send").disabled = busy;
  byId("log").classList.toggle("busy", busy);
  byId("announcer").textContent = words;
  if (!busy) byId("message").focus();
}

function askForResults(turn, item) {
  const mine = conversation;
  calls = new CallForm({
    turn, item, conversation, whileBusy,
    toolOf: (name) => toolOf(name, typedNames()),
    keep: () => {
      byId("ask-again").hidden = false;
      store();
    },
    done: (results) => {
      if (running || mine !== conversation) return;
      for (const [call, text] of results) {
        add(conversation, last(conversation), { role: "tool", text, call: call.id, name: call.name });
      }
      answer();
    },
  });
}
