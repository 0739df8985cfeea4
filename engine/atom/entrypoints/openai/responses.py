"""What clients get: response bodies of the OpenAI API.

Plain frozen structs; UNSET fields are left out, None is null. No engine, no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from atom.entrypoints.openai.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs
from atom.model_engine.request import RequestOutput


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Counts the parts of an answer's tokens. reasoning_tokens: with those of the marks."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Counts the tokens of a request. completion_tokens_details: where the model's reasoning is
    known."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that a tool call names. arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatAnswer(msgspec.Struct, frozen=True):
    """The message of a chat answer. content: null where there are only calls or reasoning. refusal:
    always null; clients with strict types expect the field. reasoning and reasoning_content: the
    same, by both of the names that clients look for."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a chat answer. finish_detail: our own word for the end; stop_reason: the stop
    string or token id, if any."""

    index: int
    message: ChatAnswer
    finish_reason: str
    finish_detail: str
    stop_reason: str | int | None
    logprobs: ChatLogprobs | None
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The first of a call has its id, type and name, and arguments that are empty yet."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    """The part of a message that one event adds. reasoning, reasoning_content: as in
    `ChatAnswer`."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    finish_detail: str | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat answer. usage: absent unless asked for; then null in every chunk
    but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    finish_detail: str | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer and every chunk of a stream alike."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "atom"
    max_model_len: int
    vocab_size: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(msgspec.Struct, frozen=True):
    """The answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Text(msgspec.Struct, frozen=True):
    """The answer of /detokenize."""

    prompt: str


class Traces(msgspec.Struct, frozen=True):
    """The answer of /stop_profile: where each rank's trace was written."""

    traces: list[str]


class Empty(msgspec.Struct, frozen=True):
    """The empty answer {}: the request was carried out."""


def usage_of(
    lasts: Sequence[RequestOutput],
    n: int,
    *,
    prompt_only: bool = False,
    reasoning_tokens: int | None = None,
) -> Usage:
    """The sum over the last outputs of a response's choices, `n` per prompt: a prompt counts once.

    prompt_only: what was generated was not asked for."""
    prompt = sum(output.num_prompt_tokens for output in lasts[::n])
    cached = sum(output.num_cached_tokens for output in lasts[::n])
    completion = 0 if prompt_only else sum(output.num_output_tokens for output in lasts)
    details = UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens)
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached), details)
