// What the page asks the server: JSON by GET, and chats as streams of events. The key stays in this
// tab of the browser and goes to this server alone.

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
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await failure(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, "the stream ended before the answer did");
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      for (const line of frame.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  }
}
