"""Bodies of the endpoints of pooling models, with the names of OpenAI, vLLM, Jina and Cohere."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from atom.entrypoints.openai.protocol import kind_of_prompt
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.request_body import ServedBody
from atom.errors import RequestError
from atom.pooling_config.embedding_prompts import InputType
from atom.sampling_params import TruncationSide

MAX_INPUTS = 2048  # OpenAI's bound
MAX_INSTRUCTION_CHARS = 8192
MAX_PROMPT_NAME_CHARS = 256

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
    truncation_side: TruncationSide | None = None
    """The end of each input that is cut: as the model's tokenizer says, unless it is sent."""


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
    prompt_name: Annotated[str, Field(max_length=MAX_PROMPT_NAME_CHARS)] | None = None
    """Name of the model's prompt that is put in front of each text; the model's default unless it
    is sent."""
    input_type: InputType | None = None
    """Role of the texts, which selects the model's prompt for it, if there is one."""


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


_Document = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[dict[str, Any], Tag("<object>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<object>"),
]


class RerankRequest(PoolingRequest):
    """Represent a body of POST /v1/rerank."""

    endpoint: ClassVar = Endpoint.RERANK

    query: str
    """The text that the documents are compared with."""
    documents: Annotated[list[_Document], _Inputs]
    """Texts that are ranked, each plain or as an object with text, or with the rank_fields."""
    rank_fields: Annotated[list[str], Field(min_length=1, max_length=64)] | None = None
    """Cohere's: the fields of documents that are objects, which are ranked together; text unless it
    is sent."""
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
        """Return the documents' texts. Raises `RequestError` for one without a field."""
        return [
            each if isinstance(each, str) else self._text_of(each, index)
            for index, each in enumerate(self.documents)
        ]

    def _text_of(self, document: dict[str, Any], index: int) -> str:
        """Return an object's text: the one field, or lines of names and values, as Cohere has."""
        names = self.rank_fields or ["text"]
        for name in names:
            if not isinstance(document.get(name), str):
                raise RequestError(
                    f"documents[{index}].{name[:64]}: is required, a text; rank_fields names the "
                    "fields of documents that are ranked",
                    param="documents",
                )
        if len(names) == 1:
            return str(document[names[0]])
        return "\n".join(f"{name}: {document[name]}" for name in names)
