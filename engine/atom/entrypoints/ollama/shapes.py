"""Bodies and answers of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from pydantic import AfterValidator, BeforeValidator, Field

from atom.entrypoints.openai.protocol import MAX_MESSAGES
from atom.entrypoints.openai.tools import MAX_TOOLS
from atom.entrypoints.request_fields.field_row import Endpoint
from atom.entrypoints.request_fields.request_body import RequestBody

# Ollama's clients add the tag of the newest version to a name.
OllamaName = Annotated[str, AfterValidator(lambda name: name.removesuffix(":latest"))]
_Streams = Annotated[bool, BeforeValidator(lambda value: True if value is None else value)]
_Objects = list[dict[str, Any]]


class OllamaBody(RequestBody):
    # What routes that generate ask of every body.
    own_id: ClassVar[str | None] = None
    timeout_seconds: ClassVar[float | None] = None
    timeout: ClassVar[float | None] = None
    deadline_ms: ClassVar[float | None] = None
    wants_usage_chunk: ClassVar[bool] = False

    model: OllamaName
    """Name of the served model; the one that is served, unless it is sent."""
    stream: _Streams = True
    """The answer comes as lines of JSON while it is generated; true unless it is sent."""
    format: Literal["", "json"] | dict[str, Any] | None = None
    """json, or a JSON schema that the answer keeps to."""
    think: bool | Literal["low", "medium", "high"] | None = None
    """True or false turns reasoning on or off; low, medium or high sets its effort."""
    options: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    """Options of sampling: temperature, top_p, top_k, min_p, seed, stop, num_predict,
    repeat_penalty, presence_penalty, frequency_penalty."""

    @property
    def compiles_grammar(self) -> bool:
        """Return whether the engine may still refuse the requested format."""
        return bool(self.format)


class OllamaChatRequest(OllamaBody):
    """A body of POST /api/chat."""

    endpoint: ClassVar = Endpoint.OLLAMA_CHAT

    messages: Annotated[_Objects, Field(min_length=1, max_length=MAX_MESSAGES)]
    """The conversation: role, content, and perhaps images (base64), thinking, tool_calls."""
    tools: Annotated[_Objects, Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the answer may call."""


class OllamaGenerateRequest(OllamaBody):
    """A body of POST /api/generate."""

    endpoint: ClassVar = Endpoint.OLLAMA_GENERATE

    prompt: Annotated[str, Field(min_length=1)]
    """The question, or with raw the text to continue."""
    system: str | None = None
    """The system prompt."""
    images: Annotated[list[str], Field(max_length=64)] | None = None
    """Pictures in base64, if the model reads images."""
    raw: bool | None = None
    """Continue the prompt as it is, without a chat template."""


class Said(msgspec.Struct, frozen=True):
    """A message of an answer, or a part of one."""

    content: Annotated[str, Meta(description="Text.")] = ""
    thinking: Annotated[str | UnsetType, Meta(description="Reasoning.")] = UNSET
    tool_calls: Annotated[_Objects | UnsetType, Meta(description="Calls of tools.")] = UNSET
    role: Annotated[Literal["assistant"], Meta(description="Always assistant.")] = "assistant"


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer, in its last line: why it ended, its tokens and their times."""

    done_reason: Annotated[str | UnsetType, Meta(description="stop or length.")] = UNSET
    total_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds.")] = UNSET
    load_duration: Annotated[int | UnsetType, Meta(description="Of these waiting.")] = UNSET
    prompt_eval_count: Annotated[int | UnsetType, Meta(description="Tokens read.")] = UNSET
    prompt_eval_duration: Annotated[int | UnsetType, Meta(description="For these.")] = UNSET
    eval_count: Annotated[int | UnsetType, Meta(description="Tokens generated.")] = UNSET
    eval_duration: Annotated[int | UnsetType, Meta(description="For these.")] = UNSET


class OllamaLine(AnswerFigures, frozen=True, kw_only=True):
    """A whole answer, or a line of one."""

    message: Annotated[Said | UnsetType, Meta(description="Of /api/chat.")] = UNSET
    response: Annotated[str | UnsetType, Meta(description="Text of /api/generate.")] = UNSET
    thinking: Annotated[str | UnsetType, Meta(description="Its reasoning.")] = UNSET
    model: Annotated[str, Meta(description="The model that answers.")]
    created_at: Annotated[str, Meta(description="Time of the request, by RFC 3339.")]
    done: Annotated[bool, Meta(description="Whether this is the last line.")]


class OllamaError(msgspec.Struct, frozen=True):
    error: Annotated[str, Meta(description="What is wrong, where, and the remedy.")]
