// Conversations in this browser: in its database, or for this page alone if the browser keeps none.

const NAME = "atom";
const STORE = "conversations";
const OPEN = "atom-open";

let database = null;
const kept = new Map(); // by id, all of them

// Reads what there is. Returns whether conversations outlive this page.
export async function openStore() {
  try {
    database = await done(indexedDB.open(NAME, 1), (request) =>
      request.result.createObjectStore(STORE, { keyPath: "id" }));
    for (const each of await done(table("readonly").getAll())) kept.set(each.id, each);
    return true;
  } catch {
    database = null;
    return false;
  }
}

function table(mode) {
  return database.transaction(STORE, mode).objectStore(STORE);
}

function done(request, upgrade) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    if (upgrade) request.onupgradeneeded = () => upgrade(request);
  });
}

// All conversations, the newest first.
export const all = () => [...kept.values()].sort((a, b) => b.changed - a.changed);

export const one = (id) => kept.get(id);

export async function keep(conversation) {
  kept.set(conversation.id, conversation);
  if (database) await done(table("readwrite").put(conversation)); // which clones it at once
}

export async function forget(id) {
  kept.delete(id);
  if (database) await done(table("readwrite").delete(id));
}

// The conversation that this tab had open before a reload.
export const openBefore = () => kept.get(sessionStorage.getItem(OPEN));

export const noteOpen = (id) => sessionStorage.setItem(OPEN, id);
