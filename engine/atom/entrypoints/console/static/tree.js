// A conversation as a tree of turns: each edit and each new answer is another branch. Pure: it knows
// neither the page nor where conversations are kept.
//
// turn: {id, parent, role, text, ...}; of the user also files, of the model reasoning, calls, model,
// usage, timings, moves, times, state and error, of a tool call and name. chosen: of each turn with several
// that follow it, the one that is shown; the turns that begin are those that follow "".

const KINDS = new Set(["user", "assistant", "tool"]);
const TITLE_CHARACTERS = 60;

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

export const newConversation = () => ({
  id: newId(), title: "", created: Date.now(), changed: Date.now(), turns: {}, chosen: {}, next: 1,
});

export function add(conversation, parent, turn) {
  const id = String(conversation.next++);
  const made = { ...turn, id, parent };
  conversation.turns[id] = made;
  conversation.chosen[parent] = id;
  if (!conversation.title && turn.role === "user") {
    conversation.title = (turn.text || turn.files?.[0]?.name || "").split("\n")[0].slice(0, TITLE_CHARACTERS);
  }
  conversation.changed = Date.now();
  return made;
}

export const following = (conversation, parent) =>
  Object.values(conversation.turns).filter((turn) => turn.parent === parent);

// The turns that are shown, from the first to the last.
export function path(conversation) {
  const found = [];
  for (let at = conversation.chosen[""]; at !== undefined; at = conversation.chosen[at]) {
    found.push(conversation.turns[at]);
  }
  return found;
}

export const last = (conversation) => path(conversation).at(-1)?.id ?? "";

// Takes a turn away that nothing follows; another branch is shown in its place if there is one.
export function remove(conversation, id) {
  const { parent } = conversation.turns[id];
  delete conversation.turns[id];
  const others = following(conversation, parent);
  if (others.length) conversation.chosen[parent] = others.at(-1).id;
  else delete conversation.chosen[parent];
}

// The turn's place among the branches: [which, of how many], from 1.
export function branch(conversation, turn) {
  const all = following(conversation, turn.parent);
  return [all.findIndex(({ id }) => id === turn.id) + 1, all.length];
}

export function choose(conversation, turn, step) {
  const all = following(conversation, turn.parent);
  const index = all.findIndex(({ id }) => id === turn.id) + step;
  if (all[index]) conversation.chosen[turn.parent] = all[index].id;
}

// The messages that the API takes for the turns up to one, that one included.
export function messages(conversation, upTo) {
  const found = [];
  for (const turn of path(conversation)) {
    found.push(message(turn));
    if (turn.id === upTo) break;
  }
  return found;
}

function message(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.call, content: turn.text };
  if (turn.role === "user") return { role: "user", content: content(turn) };
  const made = { role: "assistant", content: turn.text };
  if (turn.calls?.length) {
    made.tool_calls = turn.calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
  }
  if (turn.reasoning) made.reasoning = turn.reasoning;
  return made;
}

function content({ text, files = [] }) {
  const texts = files.filter(({ kind }) => kind === "text").map((file) => `${file.name}:\n\`\`\`\n${file.text}\n\`\`\``);
  const whole = [...texts, text].filter(Boolean).join("\n\n");
  const pictures = files.filter(({ kind }) => kind === "image");
  if (!pictures.length) return whole;
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return whole ? [...parts, { type: "text", text: whole }] : parts;
}

// Whether a text is in a conversation.
export function mentions(conversation, words) {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return true;
  const has = (text) => (text ?? "").toLowerCase().includes(wanted);
  return has(conversation.title) || Object.values(conversation.turns).some(({ text }) => has(text));
}

// Conversations of an exported file. Throws Error for anything else.
export function imported(text) {
  let body;
  try {
    body = JSON.parse(text);
  } catch (error) {
    throw new Error(`the file is no JSON: ${error.message}`);
  }
  if (body?.kind !== "atom-conversations" || !Array.isArray(body.conversations)) {
    throw new Error("the file holds no conversations; choose one that Export has written");
  }
  return body.conversations.map(checked);
}

export const exported = (conversations) =>
  JSON.stringify({ kind: "atom-conversations", version: 1, conversations }, null, 1);

function checked(found, index) {
  const turns = Object.values(found?.turns ?? {});
  const known = (id) => id === "" || Object.hasOwn(found.turns, id);
  const right = typeof found?.id === "string" && typeof found.chosen === "object" && turns.every((turn) =>
    KINDS.has(turn.role) && typeof turn.text === "string" && typeof turn.id === "string" && known(turn.parent) &&
    /^\d+$/.test(turn.id) && Number(turn.parent || 0) < Number(turn.id) && (turn.files ?? []).every(isFile) && (turn.calls ?? []).every(isCall));
  if (!right) throw new Error(`conversation ${index + 1} of the file is damaged; nothing was imported`);
  const chosen = Object.fromEntries(Object.entries(found.chosen).filter(([at, to]) =>
    known(at) && found.turns[to]?.parent === at));
  return {
    id: found.id, title: String(found.title ?? ""), created: Number(found.created) || 0,
    changed: Number(found.changed) || 0, turns: Object.fromEntries(turns.map((turn) => [turn.id, cleaned(turn)])), chosen,
    next: 1 + Math.max(0, ...turns.map(({ id }) => Number(id))),
  };
}

// A turn with the fields that the page knows; figures that are no numbers are left out.
function cleaned(turn) {
  const found = { id: turn.id, parent: turn.parent, role: turn.role, text: turn.text };
  for (const name of ["reasoning", "model", "state", "call", "name", "error"]) {
    if (typeof turn[name] === "string") found[name] = turn[name];
  }
  if (turn.files) found.files = turn.files.map(({ kind, name, url, text, tokens }) => ({ kind, name, url, text, tokens: Number.isFinite(tokens) ? tokens : undefined }));
  if (turn.calls) found.calls = turn.calls.map(({ id, name, arguments: words }) => ({ id: String(id ?? ""), name, arguments: words }));
  if (Array.isArray(turn.moves)) {
    found.moves = turn.moves.filter((move) => numbers(move, ["tokens"]))
      .map(({ ended, went_on, tokens }) => ({ ended: String(ended), went_on: String(went_on), tokens }));
  }
  if (numbers(turn.usage, ["prompt_tokens", "completion_tokens"])) found.usage = turn.usage;
  if (numbers(turn.timings, TIMINGS)) found.timings = turn.timings;
  if (numbers(turn.times, ["first", "answer"])) found.times = turn.times;
  return found;
}

const TIMINGS = ["queue_ms", "prompt_ms", "predicted_ms", "cache_n", "prompt_n", "predicted_n", "draft_n_accepted", "requests_before"];
const numbers = (found, names) => names.every((name) => Number.isFinite(found?.[name]));

const isFile = (file) => typeof file?.name === "string" &&
  (file.kind === "text" ? typeof file.text === "string"
    : file.kind === "image" && /^data:image\/(png|jpeg|webp|gif);base64,/.test(file.url));
const isCall = (call) => typeof call?.name === "string" && typeof call.arguments === "string";
