// The models and adapters that the server has, and the one that the reader asks.

import { getJson } from "./api.js";
import { byId, element } from "./dom.js";

const CHAT = "v1/chat/completions";
const WHY = {
  "/v1/completions": "has no chat template, so it continues texts and has no chats: start the server with --chat-template FILE, or ask /v1/completions",
  "/v1/embeddings": "turns texts into vectors and has no chats: ask /v1/embeddings",
  "/v1/rerank": "scores texts and has no chats: ask /v1/rerank",
};
let cards = [];
let chosen = () => {};

// The name that requests send; null before the server has told its names.
export const chosenModel = () => byId("models").value || null;

// Whether the server has several models, each with an engine of its own.
export const severalModels = () => cards.filter((card) => !card.parent).length > 1;

// Whether the chosen model reads images.
export const readsImages = () =>
  (cards.find(({ id }) => id === byId("models").value)?.input_modalities ?? []).includes("image");

// Whether the server has told its models; before that it starts, or wants its key.
export const knowsModels = () => cards.length > 0;

// The models and adapters that answer chats.
export const cardsThatChat = () => cards.filter((card) => whyNot(card) === "");

export async function showModels() {
  cards = (await getJson("v1/models")).data;
  const list = byId("models");
  const before = list.value;
  list.replaceChildren(...cards.map((card) =>
    element("option", { value: card.id }, card.parent ? `${card.id} (adapter of ${card.parent})` : card.id)));
  const chats = cards.find((card) => whyNot(card) === "");
  if (cards.some((card) => card.id === before)) list.value = before;
  else if (chats) list.value = chats.id;
  byId("models-field").hidden = cards.length < 2;
  show();
}

export function startModels(onChoice) {
  chosen = onChoice;
  byId("models").addEventListener("change", show);
}

function whyNot(card) {
  const paths = card.supported_endpoints ?? [];
  if (!paths.length || paths.includes(`/${CHAT}`)) return "";
  return `${card.id} ${WHY[paths[0]] ?? `answers ${paths.join(", ")} and no chats`}.`;
}

function show() {
  const card = cards.find(({ id }) => id === byId("models").value);
  if (!card) return;
  byId("model").textContent = card.id;
  document.title = `${card.id} · ATOM`;
  const why = whyNot(card);
  byId("no-chat").textContent = why;
  byId("no-chat").hidden = !why;
  byId("composer").hidden = Boolean(why);
  byId("empty").hidden = Boolean(why) || byId("log").children.length > 0;
  chosen();
}
