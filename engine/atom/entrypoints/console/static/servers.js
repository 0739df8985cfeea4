// The MCP servers that the reader has added: kept in this browser, asked for their tools with the page,
// and offered to the model. A server's key, and the tokens of a sign-in, stay in this tab.

import { byId, element } from "./dom.js";
import { addressOf, McpSession } from "./mcp.js";
import { renewed, signIn } from "./oauth.js";

const KEPT = "atom-mcp-servers";
const KEYS = "atom-mcp-keys";
const TOKENS = "atom-mcp-tokens";
const WINDOW = "popup,width=520,height=720";
const MOST_NAME = 64; // characters of a function's name in the API
const servers = []; // {session, on, state: "connecting", "signing", "ready" or "failed", error, signIn}
let changed = () => {};

// onChange: called when tools have come or gone.
export function startServers(onChange) {
  changed = onChange;
  byId("mcp-form").addEventListener("submit", (event) => {
    event.preventDefault();
    addTyped();
  });
  for (const { url, on } of read(localStorage, KEPT, [])) {
    try {
      include(addressOf(url), on !== false);
    } catch {
      // a damaged entry is left out
    }
  }
  show();
}

// The tools that are offered to the model, as the API takes them. taken: names of other tools.
export const toolsOffered = (taken) => [...named(taken)].map(([name, { tool }]) => ({
  type: "function",
  function: { name, description: tool.description ?? tool.title ?? "", parameters: tool.inputSchema ?? { type: "object" } },
}));

// The tool of this name: {session, tool}, or undefined if no server has it.
export const toolOf = (name, taken) => named(taken).get(name);

// Each tool by a name that the API takes and no other tool has.
function named(taken) {
  const found = new Map();
  for (const { session, on, state } of servers) {
    if (!on || state !== "ready") continue;
    for (const tool of session.tools) {
      const plain = tool.name.replace(/[^a-zA-Z0-9_-]/g, "_").slice(0, MOST_NAME);
      let name = plain;
      for (let count = 2; found.has(name) || taken.has(name); count += 1) name = `${plain.slice(0, MOST_NAME - 4)}_${count}`;
      found.set(name, { session, tool });
    }
  }
  return found;
}

function addTyped() {
  const note = byId("mcp-note");
  try {
    const url = addressOf(byId("mcp-url").value.trim());
    const key = byId("mcp-key").value.trim();
    if (key) hold(KEYS, url, key);
    const known = servers.find(({ session }) => session.url === url);
    if (known) known.session.key = key || known.session.key;
    if (known) connect(known);
    else include(url, true);
    note.hidden = true;
    byId("mcp-form").reset();
  } catch (error) {
    note.textContent = error.message;
    note.hidden = false;
  }
  keep();
  show();
}

function include(url, on) {
  const session = new McpSession(url, read(sessionStorage, KEYS, {})[url], () => renew(session));
  const server = { session, on, state: "connecting", error: "", signIn: null };
  servers.push(server);
  if (on) connect(server);
}

// Holds a value of a server in this tab; undefined forgets it.
const hold = (name, url, value) => sessionStorage.setItem(name, JSON.stringify({ ...read(sessionStorage, name, {}), [url]: value }));

// Takes tokens in place of a session's key. Returns the key.
function take(session, tokens) {
  session.key = tokens?.access ?? "";
  hold(KEYS, session.url, tokens?.access);
  hold(TOKENS, session.url, tokens ?? undefined);
  return session.key;
}

async function renew(session) {
  const tokens = read(sessionStorage, TOKENS, {})[session.url];
  return tokens?.access === session.key ? take(session, await renewed(tokens)) : "";
}

async function enter(server) {
  const popup = window.open("", "_blank", WINDOW);
  server.state = "signing";
  show();
  try {
    take(server.session, await signIn(server.signIn, popup));
  } catch (error) {
    server.state = "failed";
    server.error = error.message;
    if (servers.includes(server)) show();
    return;
  }
  await connect(server);
}

async function connect(server) {
  server.state = "connecting";
  server.error = "";
  show();
  try {
    await server.session.begin(new AbortController().signal);
    server.state = "ready";
  } catch (error) {
    server.state = "failed";
    server.error = error.message;
    server.signIn = error.signIn ?? null;
  }
  if (!servers.includes(server)) return;
  show();
  changed();
}

function remove(server) {
  servers.splice(servers.indexOf(server), 1);
  server.session.end();
  for (const name of [KEYS, TOKENS]) hold(name, server.session.url, undefined);
  keep();
  show();
  changed();
  byId("mcp-url").focus();
}

function turn(server, on) {
  server.on = on;
  keep();
  if (on && server.state !== "ready") connect(server);
  else {
    show();
    changed();
  }
}

function show() {
  byId("mcp-servers").replaceChildren(...servers.map(row));
}

function row(server) {
  const { session, on, state } = server;
  const name = session.name || session.origin;
  const box = element("input", { type: "checkbox" });
  box.checked = on;
  box.addEventListener("change", () => turn(server, box.checked));
  const away = element("button", { type: "button", class: "act", "aria-label": `Remove ${session.url}` }, "×");
  away.addEventListener("click", () => remove(server));
  const item = element("li", {}, element("div", { class: "server" },
    element("label", {}, box, ` ${name}`, element("span", { class: "quiet" }, ` ${session.url}`)), away));
  if (on && state === "failed") {
    const again = element("button", { type: "button", class: "act" }, "Try again");
    again.addEventListener("click", () => connect(server));
    item.append(element("p", { class: "failed", role: "alert" }, server.error), again);
    if (server.signIn) {
      const open = element("button", { type: "button", class: "act" }, "Sign in");
      open.addEventListener("click", () => enter(server));
      item.append(open);
    }
  } else if (on) {
    const doing = state === "signing" ? "Sign in in the other window" : "Connecting";
    item.append(state === "ready" ? toolList(session.tools) : element("p", { class: "quiet", role: "status" }, doing));
  }
  return item;
}

function toolList(tools) {
  if (!tools.length) return element("p", { class: "quiet" }, "It has no tools");
  const rows = tools.map(({ name, title, description }) =>
    element("li", {}, element("strong", {}, name), ` ${description ?? title ?? ""}`));
  return element("details", {}, element("summary", {}, `${tools.length} ${tools.length === 1 ? "tool" : "tools"}`), element("ul", {}, ...rows));
}

function keep() {
  localStorage.setItem(KEPT, JSON.stringify(servers.map(({ session, on }) => ({ url: session.url, on }))));
}

function read(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}
