// The answer that comes: each piece goes into its turn of the conversation and onto the page.

import { byId, element } from "./dom.js";
import { render } from "./markdown.js";
import { drawCall, folded, heading } from "./turns.js";

const KEPT_MS = 500; // an answer survives a reload up to this long ago

const UPWARDS = new Set(["PageUp", "ArrowUp", "Home"]);
let following = true;

// A picture that is decoded late moves the end away too, so that only the reader's own moves count.
for (const kind of ["wheel", "touchmove", "keydown"]) {
  addEventListener(kind, (event) => {
    if (kind !== "keydown" || UPWARDS.has(event.key)) requestAnimationFrame(() => (following = atEnd()));
  }, { passive: true });
}

function atEnd() {
  return [byId("log"), document.documentElement].every((part) => part.scrollHeight - part.scrollTop - part.clientHeight < 120);
}

export class Answer {
  // turn: of the conversation, empty yet; keep: stores the conversation. place: a column for it, or
  // the log.
  constructor(turn, keep, place = null) {
    this.turn = turn;
    this.keep = keep;
    this.keeping = null;
    this.text = element("div", { class: "text rendered" });
    const kind = place ? "div" : "li";
    this.item = element(kind, { class: "turn assistant", "aria-busy": "true" }, // read out as a whole
      heading(turn), this.text);
    (place ?? byId("log")).append(this.item);
    following = true;
    this.follow();
    this.drawn = null;
    this.begun = performance.now();
    this.first = null;
  }

  // Takes the chunks that `ask` yields, up to their end or an error. The turn keeps its message, and
  // the answer its status.
  async stream(ask) {
    let state = null;
    try {
      for await (const chunk of ask()) this.take(chunk);
    } catch (error) {
      state = error.name === "AbortError" ? "stopped" : "failed";
      if (state === "failed") this.turn.error = error.message;
      this.status = error.status;
    }
    this.end(state);
  }

  take(chunk) {
    if (chunk.usage) this.turn.usage = chunk.usage;
    if (chunk.timings) this.turn.timings = chunk.timings;
    if (chunk.moves) this.turn.moves = chunk.moves;
    const choice = chunk.choices[0];
    if (!choice) return;
    const { content, reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls) this.first ??= performance.now();
    if (reasoning) this.think(reasoning);
    if (content) this.say(content);
    for (const call of calls ?? []) this.call(call);
    if (choice.finish_reason) this.turn.state = choice.finish_reason === "length" ? "length" : "done";
    this.follow();
    this.keeping ??= setTimeout(() => {
      this.keeping = null;
      this.keep();
    }, KEPT_MS);
  }

  think(text) {
    if (!this.thought) {
      const shown = folded("");
      this.thought = shown.querySelector(".text");
      this.text.before(shown);
    }
    this.turn.reasoning = (this.turn.reasoning ?? "") + text;
    this.thought.append(text);
  }

  say(text) {
    this.turn.text += text;
    this.drawn ??= requestAnimationFrame(() => { // once for each picture of the screen
      this.drawn = null;
      render(this.turn.text, this.text, true);
    });
  }

  call(delta) {
    this.turn.calls ??= [];
    this.views ??= [];
    const call = (this.turn.calls[delta.index] ??= { id: "", name: "", arguments: "" });
    call.id = delta.id ?? call.id;
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
    if (!this.views[delta.index]) {
      this.views[delta.index] = drawCall(call);
      this.item.append(this.views[delta.index]);
    }
    this.views[delta.index].querySelector("pre").textContent = call.arguments;
  }

  // Ends it. state: stopped or failed if it did not end by itself.
  end(state) {
    this.item.setAttribute("aria-busy", "false");
    clearTimeout(this.keeping);
    if (this.drawn) cancelAnimationFrame(this.drawn);
    if (this.turn.text) render(this.turn.text, this.text);
    if (state) this.turn.state = state;
    else if (this.turn.state === "running") this.turn.state = "done";
    const now = performance.now();
    if (this.first) this.turn.times = { first: (this.first - this.begun) / 1000, answer: (now - this.first) / 1000 };
  }

  // Shows the end of the answer, unless the reader has scrolled away from it.
  follow() {
    if (following) this.item.scrollIntoView({ block: "end" });
  }

  // Refused before its first piece.
  get isRefused() {
    return this.turn.state === "failed" && !this.turn.text && !this.turn.calls?.length && !this.turn.reasoning;
  }
}
