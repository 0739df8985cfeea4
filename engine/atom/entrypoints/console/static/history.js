// The list of conversations that this browser keeps: search, open, delete, export and import.

import { open, openId } from "./chat.js";
import { byId, element } from "./dom.js";
import { all, forget, keep, one } from "./store.js";
import { exported, imported, mentions, newConversation, newId } from "./tree.js";

export function startHistory() {
  byId("search").addEventListener("input", showHistory);
  byId("export").addEventListener("click", exportAll);
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", importFile);
}

export function showHistory() {
  const known = all();
  const found = known.filter((each) => mentions(each, byId("search").value));
  byId("conversations").replaceChildren(...found.map(row));
  byId("no-conversations").hidden = found.length > 0;
  byId("no-conversations").textContent = known.length ? "No conversation has these words" : "None yet";
  byId("export").disabled = !known.length;
}

function row(conversation) {
  const title = conversation.title || "Untitled";
  const when = new Date(conversation.changed).toLocaleDateString();
  const show = element("button", { type: "button", class: "act title", ...(conversation.id === openId() ? { "aria-current": "true" } : {}) },
    element("span", {}, title), element("span", { class: "quiet" }, when));
  show.addEventListener("click", () => open(one(conversation.id)));
  const away = element("button", { type: "button", class: "act", "aria-label": `Delete ${title}` }, "×");
  away.addEventListener("click", async () => {
    await forget(conversation.id);
    if (conversation.id === openId()) open(newConversation());
    showHistory();
    byId("search").focus();
  });
  return element("li", {}, show, away);
}

function exportAll() {
  const url = URL.createObjectURL(new Blob([exported(all())], { type: "application/json" }));
  const link = element("a", { href: url, download: `atom-conversations-${new Date().toISOString().slice(0, 10)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function importFile() {
  const [file] = byId("import-file").files;
  if (!file) return;
  try {
    const found = imported(await file.text());
    for (const each of found) {
      const mine = one(each.id);
      const same = mine && exported(imported(exported([mine]))) === exported([each]);
      if (mine && !same) each.id = newId(); // both stay
      await keep(each);
    }
    tell(`${found.length} conversations imported`);
  } catch (error) {
    tell(`${file.name}: ${error.message}`);
  }
  byId("import-file").value = "";
  showHistory();
}

function tell(text) {
  byId("history-note").textContent = text;
  byId("history-note").hidden = !text;
}
