"""Bodies of the endpoints of pooling models, with the names of OpenAI, vLLM, Jina and Cohere."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from atom.entrypoints.openai.protocol import kind_of_prompt
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.request_body import ServedBody, StrictModel

MAX_INPUTS = 2048  # OpenAI's bound
MAX_INSTRUCTION_CHARS = 8192

_Tokens = Annotated[list[int], Field(fail_fast=True, min_length=1)]
_Inputs = Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)

_Input = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], _Inputs, Tag("<texts>")]
    | Annotated[_Tokens, Tag("<tokens>")]
    | Annotated[list[_Tokens], _Inputs, Tag("<token_lists>")],
    Discriminator(kind_of_prompt),
]
_Texts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], _Inputs, Tag("<texts>")],
    Discriminator(lambda value: "<texts>" if isinstance(value, list) else "<text>"),
]


class PoolingRequest(ServedBody):
    """Fields that all of them have. None means the server's default."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Keep this number of tokens of each input; -1: as the context holds."""


class EmbeddingRequest(PoolingRequest):
    """Represent a body of POST /v1/embeddings."""

    endpoint: ClassVar = Endpoint.EMBEDDINGS

    input: _Input
    """Text, texts, token ids, or lists of token ids; each gets a vector."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Number of leading values of each vector to keep, normalised to length 1 again, for models
    that were trained so (Matryoshka)."""
    encoding_format: Literal["float", "base64"] | None = None
    """float: numbers; base64: their bytes as little-endian float32."""
    add_special_tokens: bool | None = None
    """Let the tokenizer add its marks, such as one of the end, to each input."""


class ScoreRequest(PoolingRequest):
    """Represent a body of POST /v1/score: text_1 with text_2, one with one, one with each, or pair
    by pair."""

    endpoint: ClassVar = Endpoint.SCORE

    text_1: _Texts
    """Text that each of text_2 is compared with, or as many texts as there."""
    text_2: _Texts
    """Text or texts that are scored."""
    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None = None
    """Instruction of a reranker; the model's own if none."""


class DocumentText(StrictModel):
    text: str
    """The document's text."""


_Document = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[DocumentText, Tag("<object>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<object>"),
]


class RerankRequest(PoolingRequest):
    """Represent a body of POST /v1/rerank."""

    endpoint: ClassVar = Endpoint.RERANK

    query: str
    """The text that the documents are compared with."""
    documents: Annotated[list[_Document], _Inputs]
    """Texts that are ranked, each plain or as an object with text."""
    top_n: Annotated[int, Field(ge=0)] | None = None
    """Number of the most relevant documents to return; all unless it is sent."""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """Read this number of tokens of each document; all unless it is sent."""
    max_tokens_per_query: Annotated[int, Field(ge=1)] | None = None
    """Read this number of tokens of the query; all unless it is sent."""
    return_documents: bool | None = None
    """Return the documents' texts; true unless it is sent."""
    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None = None
    """Instruction of a reranker; the model's own if none."""

    @property
    def texts(self) -> list[str]:
        """Return the documents' texts."""
        return [each if isinstance(each, str) else each.text for each in self.documents]
