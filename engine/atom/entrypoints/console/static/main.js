// Puts the page's parts together; asks for the key where the server wants one.

import { ApiError, key } from "./api.js";
import { showChoices } from "./beside.js";
import { openLast, startChat, toolsChanged } from "./chat.js";
import { byId } from "./dom.js";
import { startEngine } from "./engine.js";
import { showModality } from "./files.js";
import { showHistory, startHistory } from "./history.js";
import { showModels, startModels } from "./models.js";
import { finishSignIn } from "./oauth.js";
import { startServers } from "./servers.js";
import { startSettings } from "./settings.js";
import { openStore } from "./store.js";

const WIDE = matchMedia("(min-width: 861px)");

function needsKey(message) {
  const form = byId("key-form");
  form.hidden = false;
  form.querySelector("label").textContent = key.get() ? message : "This server asks for its API key";
  byId("key").focus();
}

async function tryKey() {
  try {
    await showModels();
    byId("key-form").hidden = true;
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) needsKey("This key is not the right one");
    return false; // while it starts, the key is asked for with the first message
  }
}

byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key").value = "";
  if (await tryKey()) byId("message").focus();
});

finishSignIn();
for (const id of ["history", "settings", "mcp", "engine", "room"]) byId(id).open = WIDE.matches;
startSettings();
startChat({ askKey: () => needsKey("This key is not the right one"), onChange: showHistory });
startHistory();
startServers(toolsChanged);
startModels(() => {
  showModality();
  showChoices();
});
startEngine();
tryKey();
byId("kept-note").hidden = await openStore();
openLast();
showHistory();
