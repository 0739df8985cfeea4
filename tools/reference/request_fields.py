"""The page of request fields: the request models, the engine's table, and each field's servers."""

from __future__ import annotations

from collections import defaultdict

from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict
from tests.support.peers import FIELD_LISTS, fields_of
from tests.support.server.request_fields import TABLE
from tools.reference.markdown import code, head, table

_NAMES = {"openai": "OpenAI", "vllm": "vLLM", "sglang": "SGLang", "llama_cpp": "llama.cpp"}
_HEAD = """
Every request field of openai-python 3.57, vLLM 0.33, SGLang 0.5.23 and llama.cpp's server for
`/v1/chat/completions`, `/v1/completions`, `/tokenize` and `/detokenize`, OpenAI's for
`/v1/responses`, those of `/v1/embeddings`, `/v1/score` and `/v1/rerank`, Anthropic's for
`/v1/messages` and its `count_tokens` (client 2.14), with its effect here. A field within a refused
one is refused with it. Anthropic's blocks and tools that this server does not support are refused
by their type. A refused field is HTTP 400 with code `unsupported_parameter` and the remedy, unless
it is null or has a value without effect. A field of no server that is not misspelt has no effect,
and the response header `X-Ignored-Fields` names it.
"""
_SECTIONS = (
    (Verdict.HONOURED, "Honoured", "note"),
    (Verdict.HARMLESS, "Harmless: accepted, without an effect on the answer", "reason"),
    (Verdict.REFUSED, "Refused", "instead"),
)


def page() -> str:
    peers = _peers_by_field()
    parts = [head("Request fields", _HEAD)]
    for verdict, title, column in _SECTIONS:
        rows = (_row(row, peers) for row in TABLE if row.verdict is verdict)
        parts.append(f"\n## {title}\n{table(('field', 'in', 'of', column), rows)}")
    return "".join(parts)


def _row(row: FieldRow, peers: dict[tuple[str, str], list[str]]) -> tuple[str, str, str, str]:
    has = dict.fromkeys(peer for each in row.endpoints for peer in peers[each, row.path])
    if {Endpoint.MESSAGES, Endpoint.COUNT_TOKENS}.intersection(row.endpoints):
        has["Anthropic"] = None
    if any(each.startswith("api/") for each in row.endpoints):
        has["Ollama"] = None
    where = "all" if len(row.endpoints) == len(Endpoint) else ", ".join(row.endpoints)
    return code(row.path), where, ", ".join(has), row.note


def _peers_by_field() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for peer in FIELD_LISTS:
        for field in dict.fromkeys(fields_of(peer)):
            found[field].append(_NAMES[peer])
    return found
