// Pictures and texts that go with the next message: by the button, dropped, or pasted. Each picture is
// shown with the tokens that it costs; a model that reads text alone says so.

import { countTokens } from "./api.js";
import { byId, element, whole } from "./dom.js";
import { chosenModel, knowsModels, readsImages } from "./models.js";

const SENT_AS_IT_IS = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
const MOST_PICTURE_BYTES = 8 << 20; // larger ones are drawn again, smaller
const MOST_EDGE = 3072;
const MOST_TEXT_BYTES = 1 << 20;
const TEXTS = "text/*,.md,.json,.yaml,.py,.csv,.log";
let files = [];

export function startFiles() {
  byId("attach").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", async () => {
    await addFiles([...byId("files").files]);
    byId("files").value = "";
    byId("message").focus();
  });
  byId("message").addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files];
    if (!pasted.length) return;
    event.preventDefault();
    addFiles(pasted);
  });
  const place = byId("chat");
  for (const kind of ["dragenter", "dragover"]) {
    place.addEventListener(kind, (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      place.classList.add("dropping");
    });
  }
  place.addEventListener("dragleave", (event) => {
    if (!place.contains(event.relatedTarget)) place.classList.remove("dropping");
  });
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("dropping");
    addFiles([...event.dataTransfer.files]);
  });
}

export const attached = () => files;

// Takes the files that were attached, and leaves none.
export function takeFiles() {
  const taken = files;
  setFiles([]);
  return taken;
}

export function setFiles(list) {
  files = list;
  show();
}

// Says, once a model is chosen, whether it reads pictures.
export function showModality() {
  const reads = readsImages();
  byId("attach").title = reads ? "Attach pictures or texts" : `Attach texts: ${whyNot()}`;
  byId("files").accept = reads ? `image/*,${TEXTS}` : TEXTS;
  byId("file-note").hidden = true;
  if (!reads && files.some(({ kind }) => kind === "image")) say(whyNot());
}

const whyNot = () => !knowsModels() ? "the server has not told its model yet; attach the picture again once it is ready" : `${chosenModel() ?? "this model"} reads text alone and sees no pictures; choose or start a model that reads images`;

function say(text) {
  byId("file-note").textContent = text;
  byId("file-note").hidden = !text;
}

async function addFiles(list) {
  say("");
  for (const file of list) {
    try {
      files = [...files, await read(file)];
      show();
      await tellCost(files.at(-1));
    } catch (error) {
      say(`${file.name}: ${error.message}`);
    }
  }
}

async function read(file) {
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!readsImages()) throw new Error(whyNot());
    return { kind: "image", name: file.name || "picture", url: await pictureUrl(file) };
  }
  if (file.size > MOST_TEXT_BYTES) throw new Error("more than 1 MiB; attach a part of it");
  const text = await file.text();
  if (text.includes("\u0000") || text.includes("\ufffd")) throw new Error("neither a picture nor a text; attach a PNG, JPEG, WebP, GIF or a text");
  return { kind: "text", name: file.name || "text", text };
}

async function pictureUrl(file) {
  if (SENT_AS_IT_IS.has(file.type) && file.size <= MOST_PICTURE_BYTES) return dataUrl(file);
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error("this browser cannot read the picture; attach a PNG, JPEG, WebP or GIF");
  }
  const share = Math.min(1, MOST_EDGE / Math.max(picture.width, picture.height));
  const drawn = new OffscreenCanvas(Math.max(1, Math.round(share * picture.width)), Math.max(1, Math.round(share * picture.height)));
  drawn.getContext("2d").drawImage(picture, 0, 0, drawn.width, drawn.height);
  return dataUrl(await drawn.convertToBlob({ type: "image/jpeg", quality: 0.92 }));
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("the file cannot be read"));
    reader.readAsDataURL(blob);
  });
}

// What a file costs: the prompt's tokens with it, less those without it.
async function tellCost(file) {
  const text = { type: "text", text: "." };
  const part = file.kind === "image" ? { type: "image_url", image_url: { url: file.url } } : { type: "text", text: file.text };
  try {
    const [with_, without] = await Promise.all([[part, text], [text]].map((content) =>
      countTokens({ model: chosenModel() ?? undefined, messages: [{ role: "user", content }] })));
    file.tokens = with_ - without;
  } catch (error) {
    if (file.kind === "image") { // the server says what is wrong with it
      files = files.filter((each) => each !== file);
      show();
      throw error;
    }
  }
  show();
}

function show() {
  byId("attached").replaceChildren(...files.map((file) => {
    const away = element("button", { type: "button", class: "plain", "aria-label": `Remove ${file.name}` }, "×");
    away.addEventListener("click", () => {
      setFiles(files.filter((each) => each !== file));
      byId("message").focus();
    });
    return element("li", {}, ...shown(file), away);
  }));
  byId("attached").hidden = !files.length;
  byId("message").required = !files.length;
}

// A file as the composer and the conversation show it.
export function shown(file) {
  const cost = file.tokens === undefined ? "" : `${whole(file.tokens)} tokens`;
  const words = element("span", {}, element("span", { class: "name" }, file.name), cost ? element("span", { class: "quiet" }, ` ${cost}`) : "");
  return file.kind === "image" ? [element("img", { src: file.url, alt: file.name }), words] : [words];
}
