"""The endpoints that a model can answer: of chats, of texts, or of vectors and scores.

Pure. /v1/models lists them for each model, a start suggests the first one, and the page at / offers
a chat if they have one.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.config import ModelConfig

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/v1/score", "/v1/rerank"
_OF_CHATS = (CHAT, "/v1/responses", "/v1/messages", COMPLETIONS)


@dataclass(frozen=True, slots=True)
class Offer:
    """A model as clients can use it. name: by which requests name it; endpoints: the paths that it
    answers."""

    name: str
    endpoints: tuple[str, ...]


def supported_endpoints(model: ModelConfig, *, has_template: bool) -> tuple[str, ...]:
    """Return the paths of the endpoints that a model answers, the most usual one first.
    has_template: whether there is a chat template, without which a conversation is no prompt."""
    if model.pooling is not None:
        return (EMBEDDINGS, SCORE, RERANK) if model.pooling.kind == "embed" else (RERANK, SCORE)
    return _OF_CHATS if has_template else (COMPLETIONS,)
