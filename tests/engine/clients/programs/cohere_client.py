"""PyPI's cohere: texts ranked by both versions of its API. Started as `python cohere_client.py URL
EXCHANGE`, JSON with the model, the query and the texts."""

from __future__ import annotations

import json
import sys
from typing import Any

import cohere

url, written = sys.argv[1:3]
given = json.loads(written)
asked = {"model": given["model"], "query": given["query"]}
texts: list[str] = given["texts"]


def ranks(found: Any) -> list[list[float]]:
    return [[each.index, each.relevance_score] for each in found.results]


first = cohere.Client("none", base_url=url, max_retries=0)
documents = [{"title": text, "body": "b"} for text in texts]
objects = first.rerank(**asked, documents=documents, rank_fields=["title"], top_n=2)
returned = first.rerank(**asked, documents=texts, return_documents=True)
second = cohere.ClientV2("none", base_url=url, max_retries=0).rerank(
    **asked, documents=texts, top_n=2, max_tokens_per_doc=1000
)
told = {
    "v1": ranks(objects),
    "v2": ranks(second),
    "documents": [each.document.text for each in returned.results],
}
print(json.dumps(told))
