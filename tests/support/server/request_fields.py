"""Every request field of every endpoint: those that the request models declare, and the others."""

from __future__ import annotations

from dataclasses import replace

from atom.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from atom.entrypoints.ollama.embedding import OllamaEmbeddingsRequest, OllamaEmbedRequest
from atom.entrypoints.ollama.shapes import OllamaChatRequest, OllamaGenerateRequest
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from atom.entrypoints.pooling.requests import EmbeddingRequest, RerankRequest, ScoreRequest
from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow
from atom.entrypoints.request_fields.field_table import OTHER_FIELDS
from atom.entrypoints.request_fields.honoured_fields import honoured_fields
from atom.entrypoints.request_fields.request_body import RequestBody
from atom.entrypoints.responses.protocol import InputTokensRequest, ResponsesRequest
from atom.entrypoints.token_in_token_out.protocol import GenerateRequest

_KINDS: tuple[type[RequestBody], ...] = (
    ChatCompletionRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ResponsesRequest,
    InputTokensRequest,
    GenerateRequest,
    EmbeddingRequest,
    ScoreRequest,
    RerankRequest,
    MessagesRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingsRequest,
    CountTokensRequest,
)
KINDS: dict[Endpoint, type[RequestBody]] = {kind.endpoint: kind for kind in _KINDS}


def _all_fields() -> tuple[FieldRow, ...]:
    """Every field once for all endpoints that do the same with it."""
    rows: dict[FieldRow, tuple[Endpoint, ...]] = {}
    for kind in _KINDS:
        for row in honoured_fields(kind):
            alike = replace(row, endpoints=())
            rows[alike] = (*rows.get(alike, ()), *row.endpoints)
    honoured = (replace(row, endpoints=endpoints) for row, endpoints in rows.items())
    return (*honoured, *OTHER_FIELDS)


TABLE = _all_fields()
