// Shows what /overview.json says of the cluster, again and again while the page is seen.

const POLL_MS = 5000;
const byId = (id) => document.getElementById(id);
let shown = "";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function deployment(item) {
  const title = element("h3", {}, `${item.namespace}/${item.name} `,
    element("span", { class: `mark ${item.ready ? "good" : ""}` }, item.ready ? "ready" : "not ready"));
  const conditions = item.conditions.map(({ text, good }) =>
    element("li", { class: good === null ? "" : good ? "good" : "bad" }, text));
  const parts = [title, element("p", {}, `${item.model} · ${item.replicas}`)];
  if (item.rollout) parts.push(element("p", {}, `Rollout, ${item.rollout}`));
  if (item.memory) parts.push(...memory(item.memory));
  parts.push(element("ul", { class: "conditions", "aria-label": "Conditions" }, ...conditions));
  return element("article", { "aria-label": `${item.namespace}/${item.name}` }, ...parts);
}

function memory({ total, tokens, parts }) {
  const whole = parts.reduce((sum, part) => sum + part.bytes, 0);
  const words = parts.map((part) => `${part.name} ${part.size}`);
  const bar = element("div", {
    class: "bar", role: "img",
    "aria-label": `Memory of each device, planned: ${words.join(", ")}; ${total} in all`,
  }, ...parts.map((part, index) => {
    const piece = element("span", { class: `part-${index}`, title: words[index] });
    piece.style.width = `${(100 * part.bytes) / whole}%`;
    return piece;
  }));
  const legend = parts.map((part, index) => element("li", { class: `part-${index}` }, words[index]));
  legend.push(element("li", {}, `${tokens.toLocaleString("en-US")} tokens of KV cache in a replica`));
  return [bar, element("ul", { class: "legend", "aria-hidden": "true" }, ...legend)];
}

function nodes(rows) {
  if (rows === null) return element("p", {}, "The operator may not read nodes.");
  if (!rows.length) return element("p", {}, "No node has AMD devices.");
  const columns = [["node", "Node"], ["product", "Product"], ["resource", "Resource"],
    ["memory", "Memory"], ["devices", "Devices"], ["used", "Used"], ["free", "Free"],
    ["state", "State"], ["heldBy", "Held by"]];
  return element("table", {},
    element("thead", {}, element("tr", {}, ...columns.map(([, name]) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map((row) =>
      element("tr", {}, ...columns.map(([key]) => element("td", {}, String(row[key])))))));
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

async function look() {
  try {
    const response = await fetch("overview.json", { cache: "no-store" });
    const text = await response.text();
    const found = JSON.parse(text);
    if (!response.ok) throw new Error(found.error);
    notice("");
    byId("state").textContent = `as of ${new Date().toLocaleTimeString()}`;
    if (text === shown) return;
    shown = text;
    byId("deployments").replaceChildren(...(found.deployments.length
      ? found.deployments.map(deployment)
      : [element("p", {}, "There is no AtomDeployment yet: kubectl apply -f one.")]));
    byId("nodes").replaceChildren(nodes(found.nodes));
  } catch (error) {
    notice(`The cluster cannot be read now: ${error.message}`);
  }
}

for (;;) {
  if (!document.hidden) await look();
  await new Promise((resolve) => setTimeout(resolve, POLL_MS));
}
