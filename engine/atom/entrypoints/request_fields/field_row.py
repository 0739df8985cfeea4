"""A row of the table of request fields: a path, and what this server does with a field there.

A path is written as in documentation: `response_format.json_schema.name`, `messages[].audio`.
Knows no field; `field_table` has the rows, `field_check` holds requests against them.
"""

from __future__ import annotations

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
