"""What clients of the Messages API get: messages, the events of a stream, counts and models.

Plain frozen structs; UNSET fields are left out, None is null. No engine, no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from atom.entrypoints.openai.responses import Usage


def _of(text: str) -> Meta:
    return Meta(description=text)


class TokensDetails(msgspec.Struct, frozen=True):
    """Counts the parts of an answer's tokens."""

    thinking_tokens: Annotated[int, _of("Tokens of reasoning, with those of its marks.")]


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the tokens of a request. The prompt's are the sum of the first three."""

    input_tokens: Annotated[int, _of("Tokens of the prompt that were computed.")]
    cache_creation_input_tokens: Annotated[
        int, _of("Always 0: what is computed is cached by itself.")
    ] = 0
    cache_read_input_tokens: Annotated[
        int, _of("Tokens of the prompt that the prefix cache had.")
    ] = 0
    output_tokens: Annotated[int, _of("Tokens of the answer.")]
    output_tokens_details: Annotated[
        TokensDetails | UnsetType, _of("Where the model's reasoning is known.")
    ] = UNSET


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text for the user."""

    text: Annotated[str, _of("The text.")]


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning: text that the model wrote to itself."""

    thinking: Annotated[str, _of("The reasoning; empty where it is to be left out.")]
    signature: Annotated[str, _of("To be given back as it is, with the block.")]


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool, which the client runs."""

    id: Annotated[str, _of("Names the call in its tool_result.")]
    name: Annotated[str, _of("The tool.")]
    input: Annotated[dict[str, Any], _of("The arguments.")]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: Annotated[str, _of("Of the answer.")]
    type: Annotated[Literal["message"], _of("Always `message`.")] = "message"
    role: Annotated[Literal["assistant"], _of("Always `assistant`.")] = "assistant"
    model: Annotated[str, _of("The served model.")]
    content: Annotated[Sequence[Block], _of("What the answer holds, in its order.")]
    stop_reason: Annotated[
        str | None,
        _of(
            "`end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, or "
            "`model_context_window_exceeded` where the context ended the answer."
        ),
    ]
    stop_sequence: Annotated[str | None, _of("The stop sequence that ended it, if any.")]
    usage: Annotated[MessageUsage, _of("Tokens.")]


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: Annotated[int, _of("Tokens of the prompt that the conversation becomes.")]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A served model, as Anthropic's clients list it."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(msgspec.Struct, frozen=True):
    data: Sequence[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


# ---- events of a stream ----------------------------------------------------------------------


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class StopDelta(msgspec.Struct, frozen=True):
    stop_reason: str
    stop_sequence: str | None


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    message: Message


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


StreamEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


def usage_of(usage: Usage) -> MessageUsage:
    """Name the counts as Anthropic does."""
    cached, details = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=(
            UNSET if details is UNSET else TokensDetails(details.reasoning_tokens)
        ),
    )
