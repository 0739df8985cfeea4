// npm's ollama: chats whole and streamed, a tool called and answered, a typed answer, embeddings;
// with a picture as the third word, that it is seen; and the lists of models.
// Started as `node ollama_client.mjs FOLDER URL EMBEDDER_URL EXCHANGE [PICTURE]`: FOLDER has the
// package, EXCHANGE is JSON of exchange.py's names. Its output is one JSON object.
import { createRequire } from "node:module";

const [folder, url, embedderUrl, written, picture] = process.argv.slice(2);
const { Ollama } = createRequire(`${folder}/`)("ollama");
const asked = JSON.parse(written);
const client = new Ollama({ host: url });
const { model } = asked;
const user = (content, more = {}) => ({ role: "user", content, ...more });

async function streamed(messages) {
  const parts = [];
  for await (const part of await client.chat({ model, messages, stream: true })) parts.push(part);
  return parts;
}

async function chats() {
  const whole = await client.chat({ model, messages: [user(asked.hello)] });
  const pieces = (await streamed([user(asked.hello)])).map((part) => part.message.content);
  const tools = [{ type: "function", function: asked.function }];
  const messages = [user(asked.weather)];
  const first = await client.chat({ model, messages, tools });
  messages.push(first.message);
  const calls = [];
  for (const call of first.message.tool_calls ?? []) {
    calls.push(call.function.arguments.city);
    messages.push({ role: "tool", tool_name: call.function.name, content: asked.sunny });
  }
  const second = await client.chat({ model, messages, tools });
  const typed = await client.chat({
    model, messages: [user(asked.person)], format: asked.schema,
  });
  return {
    chat: whole.message.content, pieces, calls, answer: second.message.content,
    person: JSON.parse(typed.message.content),
  };
}

async function seen() {
  const messages = [user(asked.hello, { images: [picture] })];
  const whole = (await client.chat({ model, messages })).message.content;
  const pieces = (await streamed(messages)).map((part) => part.message.content);
  const images = [await client.encodeImage(picture)];
  const prompted = await client.generate({ model, prompt: asked.hello, images });
  return { whole, streamed: pieces.join(""), prompted: prompted.response };
}

// The client ends a stream at its first part that has text.
async function stopped() {
  let parts = 0;
  try {
    for await (const part of await client.chat({
      model, messages: [user(asked.hello)], stream: true,
    })) {
      parts += 1;
      if (part.message.content) client.abort();
    }
  } catch (error) {
    return { parts, error: error.name };
  }
  return { parts, error: null };
}

const names = (found) => found.models.map((each) => each.model);
const shows = async () => ({
  listed: names(await client.list()), running: names(await client.ps()),
  capabilities: (await client.show({ model })).capabilities,
  version: (await client.version()).version,
});

let told;
if (asked.stops) told = { stopped: await stopped() };
else if (picture) told = { seen: await seen(), shows: await shows() };
else {
  const { embeddings } = await new Ollama({ host: embedderUrl }).embed({
    model, input: asked.texts,
  });
  told = { chats: await chats(), embeddings };
}
console.log(JSON.stringify(told));
