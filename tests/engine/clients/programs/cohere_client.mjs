// npm's cohere-ai: texts ranked by both versions of its API.
// Started as `node cohere_client.mjs FOLDER URL EXCHANGE`: see ollama_client.mjs.
import { createRequire } from "node:module";

const [folder, url, written] = process.argv.slice(2);
const { CohereClient, CohereClientV2 } = createRequire(`${folder}/`)("cohere-ai");
const { model, query, texts } = JSON.parse(written);
const settings = { token: "none", environment: url, maxRetries: 0 };
const ranks = (found) => found.results.map((each) => [each.index, each.relevanceScore]);

const asked = { model, query };
const first = new CohereClient(settings);
const documents = texts.map((title) => ({ title, body: "b" }));
const objects = await first.rerank({ ...asked, documents, rankFields: ["title"], topN: 2 });
const returned = await first.rerank({ ...asked, documents: texts, returnDocuments: true });
const second = await new CohereClientV2(settings).rerank({
  ...asked, documents: texts, topN: 2, maxTokensPerDoc: 1000,
});
console.log(JSON.stringify({
  v1: ranks(objects), v2: ranks(second),
  documents: returned.results.map((each) => each.document.text),
}));
