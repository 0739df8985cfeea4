// Markdown as elements. markdown-it reads the text; each token becomes an element of a known name,
// with known attributes, and every text is text: what a model writes is never markup.

import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import MarkdownIt from "./markdown-it.js";
import { drawFormula, withFormulas } from "./math.js";

const reader = new MarkdownIt({ html: false, linkify: false, breaks: false });
withFormulas(reader);
const NAMES = new Set([
  "p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "strong", "em", "s",
  "table", "thead", "tbody", "tr", "th", "td",
]);
const SAFE = /^(https?:|mailto:)/i;

let growing = false; // whether the text that is drawn now is not complete

// Puts the text, as elements, in place of what a place holds.
export function render(text, place, isGrowing = false) {
  growing = isGrowing;
  const made = document.createDocumentFragment();
  fill(made, reader.parse(text, {}));
  place.replaceChildren(made);
}

function fill(root, tokens) {
  const open = [root];
  for (const token of tokens) {
    const here = open.at(-1);
    if (token.nesting < 0) {
      open.pop();
    } else if (token.type === "inline") {
      fill(here, token.children);
    } else if (token.nesting > 0) {
      const made = opened(token);
      if (made !== here) here.append(made);
      open.push(made);
    } else {
      here.append(single(token));
    }
  }

  // An element of the page for a token that holds others; a tight list's paragraphs have none.
  function opened(token) {
    if (token.hidden) return open.at(-1);
    if (token.tag === "a") return link(token.attrGet("href"));
    const made = element(NAMES.has(token.tag) ? token.tag : "div");
    if (token.tag === "ol") made.start = Number(token.attrGet("start") ?? 1);
    const aligned = /(left|right|center)/.exec(token.attrGet("style") ?? "");
    if (aligned) made.className = `align-${aligned[1]}`;
    return made;
  }
}

function link(address) {
  if (!SAFE.test(address ?? "")) return element("span");
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer" });
}

function single(token) {
  if (token.type === "softbreak") return "\n";
  if (token.type === "hardbreak") return element("br");
  if (token.type === "hr") return element("hr");
  if (token.type === "code_inline") return element("code", {}, token.content);
  if (token.type === "fence" || token.type === "code_block") return codeBlock(token, growing);
  if (token.type === "image") {
    const shown = link(token.attrGet("src")); // no other server is asked by itself
    shown.append(token.content || "picture");
    return shown;
  }
  if (token.type === "formula") {
    const place = element(token.block ? "div" : "span", { class: "formula" });
    drawFormula(place, token.content, Boolean(token.block));
    return place;
  }
  return token.content;
}
