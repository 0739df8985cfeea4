// Where the time of an answer went: a bar of waiting, prompt and answer, and its largest part as a
// sentence. The server measures it (return_timings).

import { element, seconds, whole } from "./dom.js";

const some = (count, one, several) => `${whole(count)} ${count === 1 ? one : several}`;

export function partsBar(timings) {
  const parts = [
    ["waiting", timings.queue_ms, "waiting"],
    ["prompt", timings.prompt_ms, `prompt (${whole(timings.cache_n)} tokens cached, ${whole(timings.prompt_n)} computed)`],
    ["answer", timings.predicted_ms, answerWords(timings)],
  ];
  const total = parts.reduce((sum, [, time]) => sum + time, 0);
  const legend = parts.map(([, time, words]) => `${words} ${seconds(time / 1000)}`).join(", ");
  const bar = element("div", { class: "parts", role: "img", "aria-label": `Time of the answer: ${legend}` });
  for (const [name, time] of parts) {
    const part = element("span", { class: `part ${name}` });
    part.style.flexGrow = total ? time / total : 0;
    bar.append(part);
  }
  const list = element("ul", { class: "legend" }, ...parts.map(([name, time, words]) =>
    element("li", { class: name }, `${words} ${seconds(time / 1000)}`)));
  return element("details", { class: "explain" }, element("summary", {}, sentence(timings, total), bar), list);
}

function answerWords({ predicted_n: tokens, draft_n_accepted: drafts }) {
  return `answer (${some(tokens, "token", "tokens")}${drafts ? `, ${whole(drafts)} of them accepted drafts` : ""})`;
}

// The largest part in words.
export function sentence(timings, total) {
  const { queue_ms: waited, prompt_ms: prompt, predicted_ms: answer } = timings;
  const largest = Math.max(waited, prompt, answer);
  const share = `${seconds(largest / 1000)} of ${seconds(total / 1000)}`;
  if (largest === waited && waited > 0) {
    const others = timings.requests_before;
    const why = others ? `${some(others, "request was", "requests were")} open before this one` : "no step had room yet";
    return `${share}: it waited, since ${why}.`;
  }
  if (largest === prompt) {
    return `${share}: the prompt, of which ${some(timings.prompt_n, "token was", "tokens were")} computed and ${whole(timings.cache_n)} cached.`;
  }
  return `${share}: ${some(timings.predicted_n, "token was", "tokens were")} generated${timings.draft_n_accepted ? `, ${whole(timings.draft_n_accepted)} of them accepted drafts` : ""}.`;
}
