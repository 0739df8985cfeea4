// Formulas of Markdown: $…$, \(…\), $$…$$ and \[…\]. KaTeX writes MathML, which browsers draw
// themselves; it is loaded with the first formula.

import { Drawing } from "./drawing.js";

const MOST_CHARACTERS = 4000; // of a formula: more is text, and costs no search to the end
const MOST_LINES = 200;
const MOST_KEPT = 300;
const formulas = new Drawing(() => import("./katex.js").then(() => globalThis.katex), drawn, MOST_KEPT);

export function withFormulas(reader) {
  reader.inline.ruler.before("escape", "formula", inline);
  reader.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "blockquote", "list"] });
}

function inline(state, silent) {
  const { src, pos } = state;
  const opens = src.startsWith("\\(", pos) ? "\\(" : src.startsWith("$$", pos) ? "$$" : src[pos] === "$" ? "$" : "";
  if (!opens) return false;
  const closes = opens === "\\(" ? "\\)" : opens;
  const begin = pos + opens.length;
  const length = src.slice(begin, begin + MOST_CHARACTERS).indexOf(closes);
  const text = length < 0 ? "" : src.slice(begin, begin + length);
  const end = begin + length;
  if (!text.trim() || end > state.posMax) return false;
  // A price is no formula: "$5 and $6" has a space before the second mark, or a digit behind it.
  if (opens === "$" && (/^\s|\s$/.test(text) || /\d/.test(src[end + 1] ?? ""))) return false;
  if (!silent) {
    const token = state.push("formula", "", 0);
    token.content = text;
    token.block = opens === "$$";
  }
  state.pos = end + closes.length;
  return true;
}

function block(state, startLine, endLine, silent) {
  const first = lineOf(state, startLine);
  const opens = ["$$", "\\["].find((mark) => first.startsWith(mark));
  if (!opens) return false;
  const closes = opens === "$$" ? "$$" : "\\]";
  const lines = [first.slice(2)];
  let line = startLine;
  while (!lines.at(-1).includes(closes)) {
    line += 1;
    if (line >= endLine || lines.length >= MOST_LINES) return false; // it is still being written
    lines.push(lineOf(state, line));
  }
  const text = lines.join("\n");
  const end = text.indexOf(closes);
  if (text.slice(end + 2).trim()) return false; // words follow: it is a part of a line
  if (silent) return true;
  const token = state.push("formula", "", 0);
  token.content = text.slice(0, end);
  token.block = true;
  token.map = [startLine, line + 1];
  state.line = line + 1;
  return true;
}

const lineOf = (state, line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);

// Draws a formula into a place, which has its source until KaTeX is there, or if it is no formula.
export function drawFormula(place, text, block) {
  place.textContent = text;
  formulas.draw(place, text, block);
}

function drawn(katex, text, block) {
  const made = document.createElement("span");
  try {
    katex.render(text, made, {
      displayMode: block, output: "mathml", throwOnError: true, trust: false, strict: "ignore", maxExpand: 200, maxSize: 20,
    });
  } catch {
    return null; // its source stays
  }
  return made;
}
