// The conversation: what was said, and the turn that is being answered.

import { ApiError, chat } from "./api.js";
import { byId, element, numberIn, seconds } from "./dom.js";
import { render } from "./markdown.js";
import { chosenModel } from "./models.js";

const said = []; // messages as the API takes them
let running = null; // AbortController of the answer that comes

export function startChat({ needsKey }) {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("message").value.trim();
    if (!text || running) return;
    byId("message").value = "";
    say({ role: "user", content: text });
    answer(needsKey);
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("composer").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    running?.abort();
    said.length = 0;
    byId("log").replaceChildren();
    byId("empty").hidden = false;
    byId("message").focus();
  });
}

function say(message) {
  said.push(message);
  turn(message.role, { user: "You", tool: "Result" }[message.role]).text.textContent = message.content;
}

function turn(role, name) {
  byId("empty").hidden = true;
  const text = element("div", { class: "text" });
  const item = element("li", { class: `turn ${role}` }, element("h2", {}, name), text);
  byId("log").append(item);
  item.scrollIntoView({ block: "end" });
  return { item, text };
}

function request() {
  const system = byId("system").value.trim();
  const tools = byId("tools").value.trim();
  const body = {
    model: chosenModel() ?? undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said],
    temperature: numberIn("temperature"),
    top_p: numberIn("top-p"),
    max_tokens: numberIn("max-tokens"),
  };
  if (tools) {
    try {
      body.tools = JSON.parse(tools);
    } catch (error) {
      throw new ApiError(0, `the tools are no JSON: ${error.message}`);
    }
  }
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined));
}

async function answer(needsKey) {
  const shown = new Answer();
  running = new AbortController();
  setBusy(true);
  try {
    for await (const chunk of chat(request(), running.signal)) shown.take(chunk);
  } catch (error) {
    if (error.name === "AbortError") shown.stopped = true;
    else shown.fail(error.message);
    if (error.status === 401) needsKey(error.message);
  } finally {
    running = null;
    setBusy(false);
    shown.end(needsKey);
  }
}

function setBusy(busy) {
  byId("stop").hidden = !busy;
  byId("send").disabled = busy;
  byId("announcer").textContent = busy ? "The model answers" : "The answer is complete";
  if (!busy) byId("message").focus();
}

class Answer {
  constructor() {
    Object.assign(this, turn("assistant", "Model"));
    this.text.classList.add("rendered");
    this.drawn = null;
    this.item.setAttribute("aria-busy", "true"); // read out as a whole, not token by token
    this.message = { role: "assistant", content: "" };
    this.reasoning = "";
    this.calls = [];
    this.begun = performance.now();
    this.first = null;
    this.usage = null;
    this.finish = null;
    this.stopped = false;
    this.failed = false;
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    const { content, reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls) this.first ??= performance.now();
    if (reasoning) this.think(reasoning);
    if (content) this.say(content);
    for (const call of calls ?? []) this.call(call);
    this.finish = choice.finish_reason ?? this.finish;
    const log = byId("log");
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
  }

  think(text) {
    if (!this.thought) {
      this.thought = element("div", { class: "text" });
      this.text.before(element("details", {}, element("summary", {}, "Reasoning"), this.thought));
    }
    this.reasoning += text;
    this.thought.append(text);
  }

  say(text) {
    this.message.content += text;
    if (this.drawn) return; // once for each picture of the screen, however many pieces come
    this.drawn = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.drawn = null;
    render(this.message.content, this.text);
  }

  call(delta) {
    const call = (this.calls[delta.index] ??= { id: "", name: "", arguments: "", view: null });
    call.id = delta.id ?? call.id;
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
    if (!call.view) {
      call.view = element("pre");
      this.item.append(
        element("section", { class: "call", "aria-label": `Call of ${call.name}` },
          element("strong", {}, call.name), call.view),
      );
    }
    call.view.textContent = call.arguments;
  }

  fail(message) {
    this.failed = true;
    this.item.append(element("p", { class: "failed", role: "alert" }, message));
  }

  end(needsKey) {
    this.item.setAttribute("aria-busy", "false");
    if (this.drawn) cancelAnimationFrame(this.drawn);
    if (this.message.content) this.draw();
    if (this.failed && !this.message.content && !this.calls.length) {
      const last = said.pop(); // so that it can be sent again
      if (last?.role === "user") byId("message").value = last.content;
      return;
    }
    if (this.calls.length) {
      this.message.tool_calls = this.calls.map((call) => ({
        id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
      }));
    }
    if (this.reasoning) this.message.reasoning = this.reasoning;
    said.push(this.message);
    this.item.append(element("p", { class: "foot" }, this.summary()));
    if (this.calls.length && !this.failed && !this.stopped) this.askForResults(needsKey);
  }

  summary() {
    const now = performance.now();
    const parts = [];
    const tokens = this.usage?.completion_tokens;
    if (tokens !== undefined) {
      parts.push(`${tokens} tokens`);
      // An answer that came at once tells nothing of the speed.
      if (tokens > 1 && now - this.first > 50) parts.push(`${((1000 * (tokens - 1)) / (now - this.first)).toFixed(1)} tokens/s`);
    }
    if (this.first) parts.push(`first after ${seconds((this.first - this.begun) / 1000)}`);
    if (this.stopped) parts.push("stopped");
    else if (this.finish === "length") parts.push("cut at the most tokens");
    return parts.join(" · ");
  }

  askForResults(needsKey) {
    const fields = this.calls.map((call, index) => {
      const id = `result-${said.length}-${index}`;
      return { call, id, field: element("textarea", { id, rows: "2" }) };
    });
    const form = element("form", { class: "call" },
      ...fields.flatMap(({ call, id, field }) => [element("label", { for: id }, `Result of ${call.name}`), field]),
      element("button", {}, "Send results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      for (const { call, field } of fields) {
        say({ role: "tool", tool_call_id: call.id, content: field.value });
      }
      answer(needsKey);
    });
    this.item.append(form);
  }
}
