"""A request field: its path, and what this server does with it.

A path is written as in documentation: `response_format.json_schema.name`, `messages[].audio`.
Knows no field: `honoured_fields` reads the request models, `field_table` has all other fields, and
`field_check` holds requests against both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Endpoint(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    RESPONSES = "responses"
    RESPONSES_INPUT_TOKENS = "responses/input_tokens"
    GENERATE = "generate"
    EMBEDDINGS = "embeddings"
    SCORE = "score"
    RERANK = "rerank"
    MESSAGES = "messages"
    COUNT_TOKENS = "messages/count_tokens"
    OLLAMA_CHAT = "api/chat"
    OLLAMA_GENERATE = "api/generate"
    OLLAMA_EMBED = "api/embed"
    OLLAMA_EMBEDDINGS = "api/embeddings"


GENERATION = (Endpoint.CHAT, Endpoint.COMPLETIONS)
POOLING = (Endpoint.EMBEDDINGS, Endpoint.SCORE, Endpoint.RERANK)
CONVERSATION = (Endpoint.CHAT, Endpoint.TOKENIZE)


class Verdict(StrEnum):
    """HONOURED: it has its effect. REFUSED: HTTP 400 with the remedy, unless it asks for nothing.
    HARMLESS: it is taken, and an answer is the same without it."""

    HONOURED = "honoured"
    REFUSED = "refused"
    HARMLESS = "harmless"


@dataclass(frozen=True, slots=True)
class FieldRow:
    """Describe one request field. note: of a refused field the remedy, of a harmless one the
    reason, of an honoured one its particulars. nothing: values of a refused field that request
    nothing, besides null. opaque: an object whose keys are its sender's own. closed: an object in
    which unknown fields are refused, since they would have changed the answer."""

    path: str
    endpoints: tuple[Endpoint, ...]
    verdict: Verdict
    note: str = ""
    nothing: tuple[Any, ...] = ()
    opaque: bool = False
    closed: bool = False


def refused(
    endpoints: Sequence[Endpoint], names: str, remedy: str, *nothing: Any
) -> tuple[FieldRow, ...]:
    """Build a row per name (they are separated by spaces)."""
    return tuple(
        FieldRow(name, tuple(endpoints), Verdict.REFUSED, remedy, nothing) for name in names.split()
    )


def harmless(
    endpoints: Sequence[Endpoint], names: str, why: str, *, under: str = ""
) -> tuple[FieldRow, ...]:
    """Build a row per name (they are separated by spaces), each below `under`."""
    return tuple(
        FieldRow(under + name, tuple(endpoints), Verdict.HARMLESS, why) for name in names.split()
    )
