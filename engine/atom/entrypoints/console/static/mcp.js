// A client of MCP servers over Streamable HTTP (specification 2025-06-18): it begins a session, lists
// the tools and calls them. It knows neither the page nor which servers are kept.

import { signInOf } from "./oauth.js";
import { events } from "./sse.js";

const OFFERED = "2025-06-18";
const KNOWN = new Set(["2025-11-25", OFFERED, "2025-03-26"]);
const CLIENT = { name: "atom-page", version: "1" };
const START_MS = 30_000;
const PROBE_MS = 5_000;
const EVENT_MS = 500; // until the browser tells that its policy kept the page from an address
const MOST_PAGES = 50; // of a list of tools
const MOST_CHARACTERS = 100_000; // of a result
const UNKNOWN_METHOD = -32601;

// message: a sentence for the reader. status: of the HTTP answer, if there was one. signIn: where the
// reader may sign in, as `signInOf` names it.
export class McpError extends Error {
  constructor(message, status = 0, signIn = null) {
    super(message);
    this.status = status;
    this.signIn = signIn;
  }
}

// Throws McpError for a text that is no address.
export function addressOf(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) {
    throw new McpError(`"${text}" is no address of a server, such as http://localhost:8001/mcp`);
  }
  url.hash = "";
  return url.href;
}

export class McpSession {
  // key: the server's own, if it wants one. renew: called once the key has ended; returns another one,
  // or "" if there is none.
  constructor(url, key = "", renew = async () => "") {
    this.url = url;
    this.origin = new URL(url).origin;
    this.key = key;
    this.renew = renew;
    this.name = "";
    this.tools = [];
    this.forget();
  }

  forget() {
    this.id = null;
    this.version = null;
    this.next = 1;
  }

  // Begins a session and reads the tools. Throws McpError.
  async begin(signal) {
    const bounded = AbortSignal.any([signal, AbortSignal.timeout(START_MS)]);
    this.forget();
    const told = await this.ask("initialize", { protocolVersion: OFFERED, capabilities: {}, clientInfo: CLIENT }, bounded);
    if (!KNOWN.has(told?.protocolVersion)) {
      throw new McpError(`${this.origin} speaks version ${told?.protocolVersion} of MCP, and this page ${[...KNOWN].join(", ")}.`);
    }
    this.version = told.protocolVersion;
    this.name = String(told.serverInfo?.title ?? told.serverInfo?.name ?? "");
    await this.post({ jsonrpc: "2.0", method: "notifications/initialized" }, bounded);
    this.tools = await this.list(bounded);
  }

  async list(signal) {
    const tools = [];
    let cursor;
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const told = await this.ask("tools/list", cursor === undefined ? {} : { cursor }, signal);
      tools.push(...(told?.tools ?? []).filter(({ name }) => typeof name === "string"));
      cursor = told?.nextCursor;
      if (cursor === undefined || cursor === null) break;
    }
    return tools;
  }

  // Calls a tool. Returns its result as a text, and whether the tool failed. Throws McpError.
  async call(name, args, signal) {
    const ask = () => this.ask("tools/call", { name, arguments: args }, signal);
    try {
      return resultOf(await ask());
    } catch (error) {
      if (error.status !== 404 || !this.id) throw error;
    }
    await this.begin(signal); // the server has ended the session, and called nothing
    return resultOf(await ask());
  }

  // Ends the session, if the server lets a page do so.
  end() {
    if (this.id) fetch(this.url, { method: "DELETE", headers: this.headers(), credentials: "omit" }).catch(() => {});
    this.forget();
  }

  headers() {
    const found = { "content-type": "application/json", accept: "application/json, text/event-stream" };
    if (this.version) found["mcp-protocol-version"] = this.version;
    if (this.id) found["mcp-session-id"] = this.id;
    if (this.key) found.authorization = `Bearer ${this.key}`;
    return found;
  }

  async ask(method, params, signal) {
    const id = this.next++;
    let answer;
    try {
      const response = await this.post({ jsonrpc: "2.0", id, method, params }, signal);
      if (method === "initialize") this.id = response.headers.get("mcp-session-id");
      answer = await this.answerIn(response, id, signal);
    } catch (error) {
      if (signal.aborted && this.version) this.post({ jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: id } }, AbortSignal.timeout(PROBE_MS)).catch(() => {});
      if (error.name === "TimeoutError") throw new McpError(`${this.origin} did not answer within ${START_MS / 1000} s.`);
      throw error;
    }
    if (answer.error) throw new McpError(`${this.origin} refuses ${method}: ${answer.error.message ?? "it gives no reason"}`);
    return answer.result;
  }

  async post(message, signal) {
    let response = await this.send(message, signal);
    if (response.status === 401 && (await this.renew())) response = await this.send(message, signal);
    if (!response.ok) throw await this.refusal(response);
    return response;
  }

  async send(message, signal) {
    try {
      return await fetch(this.url, {
        method: "POST", headers: this.headers(), body: JSON.stringify(message), signal, credentials: "omit", cache: "no-store",
      });
    } catch (error) {
      if (signal.aborted) throw error;
      throw new McpError(await this.whyNot());
    }
  }

  async answerIn(response, id, signal) {
    const isAnswer = (each) => each?.id === id && ("result" in each || "error" in each);
    const kind = response.headers.get("content-type") ?? "";
    try {
      if (!kind.startsWith("text/event-stream")) {
        const told = [await response.json()].flat(); // a list in the specification of 2025-03-26
        const found = told.find(isAnswer);
        if (found) return found;
      } else {
        for await (const data of events(response.body)) {
          for (const each of [JSON.parse(data)].flat()) {
            if (isAnswer(each)) return each;
            if (each?.method && each.id !== undefined) this.reply(each);
          }
        }
        throw new McpError(`${this.origin} ended its answer before it was complete.`);
      }
    } catch (error) {
      if (signal.aborted || error instanceof McpError) throw error;
      if (!(error instanceof SyntaxError)) throw new McpError(`${this.origin} ended its answer before it was complete.`);
    }
    throw new McpError(`${this.url} does not answer as an MCP server does; the address of many ends in /mcp.`);
  }

  // Answers a question of the server: this page offers nothing but to be there.
  reply({ id, method }) {
    const told = method === "ping" ? { result: {} } : { error: { code: UNKNOWN_METHOD, message: `this client has no ${method}` } };
    this.post({ jsonrpc: "2.0", id, ...told }, AbortSignal.timeout(PROBE_MS)).catch(() => {});
  }

  async refusal(response) {
    const { status } = response;
    const text = await response.text().catch(() => "");
    const signIn = status === 401 ? await signInOf(this.url, response.headers.get("www-authenticate")) : null;
    if (signIn) return new McpError(`${this.origin} wants a sign-in at ${new URL(signIn.issuer).origin}${this.key ? ": its key is wrong or has ended" : ""}.`, status, signIn);
    if (status === 401 || status === 403) return new McpError(`${this.origin} refuses this page (${status}): ${this.key ? "the key is not the right one" : "it wants a key"}, or it does not take calls from ${location.origin}.`, status);
    if (!this.id && this.version && status === 400) return new McpError(`${this.origin} wants its session's id, which it does not show to pages: its CORS rules must expose the header Mcp-Session-Id.`, status);
    if (status === 404 || status === 405) return new McpError(`There is no MCP server at ${this.url} (${status}); the address of many ends in /mcp.`, status);
    return new McpError(`${this.origin} answers ${status}: ${said(text)}`, status);
  }

  // Tells apart why a browser gives no answer: it says the same of all reasons.
  async whyNot() {
    const isForbidden = forbids(this.origin);
    const isThere = await fetch(this.url, { method: "HEAD", mode: "no-cors", credentials: "omit", signal: AbortSignal.timeout(PROBE_MS) })
      .then(() => true, () => false);
    if (!isThere && (await isForbidden)) return `This page may not call ${this.origin}: whoever runs this server can allow it with --page-mcp-hosts ${this.origin}`;
    if (isThere) return `${this.origin} is there and lets no page of ${location.origin} call it: its CORS rules must allow this origin, and the headers Mcp-Session-Id and MCP-Protocol-Version.`;
    if (location.protocol === "https:" && this.url.startsWith("http:")) return `${this.origin} cannot be reached: it may not be running, and browsers let a page of HTTPS call no other machine by HTTP.`;
    return `${this.origin} cannot be reached: it may not be running, or its address is another.`;
  }
}

// Whether the page's own policy keeps it from an origin, of which the browser tells by an event alone.
function forbids(origin) {
  return new Promise((resolve) => {
    const look = ({ blockedURI }) => {
      if (URL.canParse(blockedURI) && new URL(blockedURI).origin === origin) end(true);
    };
    const end = (found) => {
      document.removeEventListener("securitypolicyviolation", look);
      resolve(found);
    };
    document.addEventListener("securitypolicyviolation", look);
    setTimeout(() => end(false), EVENT_MS);
  });
}

function said(text) {
  try {
    const body = JSON.parse(text);
    return String(body.error?.message ?? body.error ?? text).slice(0, 300);
  } catch {
    return text.slice(0, 300) || "without a reason";
  }
}

// A result as the text that the model reads.
export function resultOf(told) {
  const parts = (told?.content ?? []).map((part) => {
    if (part.type === "text") return part.text;
    if (part.type === "resource" && typeof part.resource?.text === "string") return part.resource.text;
    if (part.type === "resource_link") return `${part.name ?? "resource"}: ${part.uri}`;
    return `[${part.mimeType ?? part.resource?.mimeType ?? part.type}, which the model does not see]`;
  });
  if (!parts.length && told?.structuredContent !== undefined) parts.push(JSON.stringify(told.structuredContent));
  const text = parts.join("\n");
  const cut = text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)}\n[cut after ${MOST_CHARACTERS} characters]` : text;
  return { text: cut, isError: Boolean(told?.isError) };
}
