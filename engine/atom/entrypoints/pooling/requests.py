"""Bodies of the endpoints of pooling models, with the names of OpenAI, vLLM, Jina and Cohere."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from atom.entrypoints.openai.protocol import (
    ID_PATTERN,
    MAX_TIMEOUT_SECONDS,
    RequestBody,
)
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.model_engine.request import MAX_PRIORITY, MAX_SALT_CHARS

MAX_INPUTS = 2048  # OpenAI's bound
MAX_INSTRUCTION_CHARS = 8192

_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
_Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS)]
_Tokens = Annotated[list[int], Field(fail_fast=True, min_length=1)]
_Inputs = Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)


def _kind_of_input(value: Any) -> str:
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<token_lists>"
    return "<tokens>" if isinstance(first, int) else "<texts>"


_Input = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], _Inputs, Tag("<texts>")]
    | Annotated[_Tokens, Tag("<tokens>")]
    | Annotated[list[_Tokens], _Inputs, Tag("<token_lists>")],
    Discriminator(_kind_of_input),
]
_Texts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], _Inputs, Tag("<texts>")],
    Discriminator(lambda value: "<texts>" if isinstance(value, list) else "<text>"),
]


class PoolingRequest(RequestBody):
    """Fields that all of them have. None means the server's default."""

    model_config = _STRICT

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    request_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_SALT_CHARS)] | None = None
    timeout_seconds: _Timeout | None = None
    timeout: _Timeout | None = None


class EmbeddingRequest(PoolingRequest):
    """Represent a body of POST /v1/embeddings. dimensions: the number of leading values of each
    vector to keep, normalised to length 1 again, for models that were trained so (Matryoshka)."""

    endpoint: ClassVar = Endpoint.EMBEDDINGS

    input: _Input
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    add_special_tokens: bool | None = None


class ScoreRequest(PoolingRequest):
    """Represent a body of POST /v1/score: text_1 with text_2, one with one, one with each, or pair
    by pair. instruction: the criterion for a reranker."""

    endpoint: ClassVar = Endpoint.SCORE

    text_1: _Texts
    text_2: _Texts
    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None = None


class DocumentText(BaseModel):
    model_config = _STRICT
    text: str


_Document = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[DocumentText, Tag("<object>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<object>"),
]


class RerankRequest(PoolingRequest):
    """Represent a body of POST /v1/rerank. top_n: how many of the most relevant documents to
    return; 0 or absent for all. return_documents: false leaves their texts out. max_tokens_per_doc,
    max_tokens_per_query: tokens read of each text, from its beginning."""

    endpoint: ClassVar = Endpoint.RERANK

    query: str
    documents: Annotated[list[_Document], _Inputs]
    top_n: Annotated[int, Field(ge=0)] | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_query: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None = None

    @property
    def texts(self) -> list[str]:
        """Return the documents' texts."""
        return [each if isinstance(each, str) else each.text for each in self.documents]
