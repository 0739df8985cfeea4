// What the page asks the server: JSON by GET, and chats as streams of events. The key stays in this
// tab of the browser and goes to this server alone.

import { events } from "./sse.js";

const KEY = "atom-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => sessionStorage.setItem(KEY, text),
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  return key.get() ? { authorization: `Bearer ${key.get()}` } : {};
}

async function failure(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return new ApiError(response.status, body.error?.message ?? body.reason ?? text);
  } catch {
    return new ApiError(response.status, text || `HTTP ${response.status}`);
  }
}

export async function getText(path) {
  const response = await fetch(path, { headers: headers(), cache: "no-store" });
  if (!response.ok) throw await failure(response);
  return response.text();
}

export async function getJson(path) {
  return JSON.parse(await getText(path));
}

async function post(path, body, signal) {
  const response = await fetch(path, {
    method: "POST", headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  return response;
}

// How many tokens a conversation has. Throws ApiError, also for a picture that the server cannot read.
export async function countTokens(body) {
  return (await (await post("tokenize", body)).json()).count;
}

// The state of the server, whatever its status code; null when nothing answers.
export async function health() {
  try {
    const response = await fetch("health", { cache: "no-store" });
    const body = await response.json();
    return { ...body, status: response.ok ? "ready" : body.status };
  } catch {
    return null;
  }
}

// Yields the chunks of a streamed chat. Throws ApiError for a refusal, before the stream or in it.
export async function* chat(body, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true }, return_timings: true };
  const response = await post("v1/chat/completions", asked, signal);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, "the stream ended before the answer did");
}
