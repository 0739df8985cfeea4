// Code of an answer: its language, a button that copies it, and colours. Highlight.js divides the
// text into a tree of names, and each becomes an element: what a model writes is never markup.

import { element } from "./dom.js";
import { Drawing } from "./drawing.js";

const MOST_CHARACTERS = 40_000; // more is shown without colours
const MOST_GROWING = 4000; // of code that grows with every piece of an answer
const MOST_KEPT = 100;
const colours = new Drawing(() => import("./highlight.js").then((module) => module.default), coloured, MOST_KEPT);

// growing: the answer is not complete, and its last block changes.
export function codeBlock({ content, info }, growing) {
  const language = (info ?? "").trim().split(/\s+/)[0];
  const copy = element("button", { type: "button", class: "plain" }, "Copy");
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(content)) ? "Copied" : "Select and copy";
  });
  const code = element("code", {}, content);
  if (language && content.length < (growing ? MOST_GROWING : MOST_CHARACTERS)) colours.draw(code, content, language);
  return element("figure", { class: "code" },
    element("figcaption", {}, element("span", {}, language || "text"), copy),
    element("pre", { tabindex: "0" }, code));
}

function coloured(library, text, language) {
  if (!library.getLanguage(language)) return null;
  const found = library.highlight(text, { language, ignoreIllegals: true });
  return element("code", {}, ...found._emitter.rootNode.children.map(made));
}

function made(node) {
  if (typeof node === "string") return node;
  const names = (node.scope ?? "").split(".").map((name, index) => `hl-${name}${"_".repeat(index)}`);
  return element("span", node.scope ? { class: names.join(" ") } : {}, ...node.children.map(made));
}

// Whether the text is in the clipboard: browsers give it to pages of https and of this machine.
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
