"""What /v1/responses answers: the response, its items and its usage.

Plain frozen structs; UNSET fields are left out, None is null. Values that are shown as the client
sent them (tools, a choice among them) are raw JSON. No engine, no HTTP.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from atom.entrypoints.openai.responses import Usage

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ItemEnd = Annotated[
    ItemStatus, Meta(description="completed, or incomplete where the answer was cut.")
]
Namespace = Annotated[str | UnsetType, Meta(description="Of the tool, if it was sent in one.")]


class TopLogprob(msgspec.Struct, frozen=True):
    token: Annotated[str, Meta(description="Text of the token.")]
    logprob: Annotated[float, Meta(description="Its log-probability.")]
    bytes: Annotated[
        list[int] | None, Meta(description="Its bytes, which may be part of a character.")
    ] = None


class TextLogprob(msgspec.Struct, frozen=True):
    """The log-probability of one token of a text."""

    token: Annotated[str, Meta(description="Text of the token.")]
    logprob: Annotated[float, Meta(description="Its log-probability.")]
    bytes: Annotated[list[int], Meta(description="Its bytes, which may be part of a character.")]
    top_logprobs: Annotated[
        list[TopLogprob], Meta(description="The most likely tokens at this place.")
    ]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: Annotated[str, Meta(description="The text.")]
    annotations: Annotated[
        list[dict[str, Any]], Meta(description="Always empty: nothing is cited.")
    ] = []
    logprobs: Annotated[
        list[TextLogprob], Meta(description="Of its tokens, if they were asked for.")
    ] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: Annotated[str, Meta(description="What the model thought.")]


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    id: Annotated[str, Meta(description="Id of the item.")]
    content: Annotated[list[OutputText], Meta(description="The text, in one part.")]
    status: ItemEnd
    role: Annotated[Literal["assistant"], Meta(description="Always assistant.")] = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Represent the model's reasoning. summary: always empty, since this server writes none.
    encrypted_content: as `reasoning_content` writes it, if requested."""

    id: Annotated[str, Meta(description="Id of the item.")]
    content: Annotated[
        list[ReasoningText], Meta(description="What the model thought, in one part.")
    ]
    status: ItemEnd
    encrypted_content: Annotated[
        str | UnsetType, Meta(description="The same to be handed back, if include asks for it.")
    ] = UNSET
    summary: Annotated[list[str], Meta(description="Always empty: reasoning is shown itself.")] = []


class _Call(msgspec.Struct, frozen=True):
    """Base of the items that call a tool."""

    id: Annotated[str, Meta(description="Id of the item.")]
    call_id: Annotated[str, Meta(description="To be named by the item that brings the result.")]


class FunctionCallItem(_Call, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function. namespace: that its tool was sent in, if any."""

    name: Annotated[str, Meta(description="Which function is called.")]
    arguments: Annotated[str, Meta(description="JSON text, as the model wrote it.")]
    status: ItemEnd
    namespace: Namespace = UNSET


class CustomToolCallItem(_Call, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool with its free text."""

    name: Annotated[str, Meta(description="Which custom tool is called.")]
    input: Annotated[str, Meta(description="The text for the tool.")]
    status: ItemEnd
    namespace: Namespace = UNSET


Item = MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Counts the parts of a prompt. cache_write_tokens: nothing is charged for writing here."""

    cached_tokens: Annotated[int, Meta(description="Tokens that were in the prefix cache already.")]
    cache_write_tokens: Annotated[
        int, Meta(description="Always 0: writing to the cache costs nothing.")
    ] = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: Annotated[
        int, Meta(description="Tokens of reasoning, with those of its marks.")
    ]


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: Annotated[int, Meta(description="Tokens of the prompt.")]
    input_tokens_details: Annotated[
        InputTokensDetails, Meta(description="What of the prompt was known already.")
    ]
    output_tokens: Annotated[int, Meta(description="Tokens generated.")]
    output_tokens_details: Annotated[
        OutputTokensDetails, Meta(description="What they were used for.")
    ]
    total_tokens: Annotated[int, Meta(description="The sum of both.")]


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Annotated[Literal["max_output_tokens"], Meta(description="Always max_output_tokens.")]


class ResponseError(msgspec.Struct, frozen=True):
    code: Annotated[str, Meta(description="server_error, rate_limit_exceeded or invalid_prompt.")]
    message: Annotated[str, Meta(description="What went wrong.")]


class ReasoningEcho(msgspec.Struct, frozen=True):
    effort: Annotated[str | None, Meta(description="As it was asked for.")] = None
    summary: Annotated[str | None, Meta(description="As it was asked for.")] = None


class TextEcho(msgspec.Struct, frozen=True):
    format: Annotated[dict[str, Any], Meta(description="As it was asked for.")]
    verbosity: Annotated[str | None, Meta(description="As it was asked for.")] = None


class SamplingEcho(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a response that its tokens were drawn by."""

    instructions: Annotated[str | None, Meta(description="As they were sent.")] = None
    max_output_tokens: Annotated[int | None, Meta(description="As it was sent.")] = None
    reasoning: Annotated[ReasoningEcho, Meta(description="How the model was asked to reason.")]
    temperature: Annotated[float, Meta(description="That was sampled with.")]
    text: Annotated[TextEcho, Meta(description="The form of the text.")]
    top_logprobs: Annotated[int, Meta(description="How many likely tokens are told at each place.")]
    top_p: Annotated[float, Meta(description="That was sampled with.")]
    truncation: Annotated[str, Meta(description="Always disabled.")]


class ToolsEcho(SamplingEcho, frozen=True, kw_only=True):
    """Add the options of a response about tools."""

    max_tool_calls: Annotated[
        int | None, Meta(description="Always null: this server runs no tools.")
    ] = None
    parallel_tool_calls: Annotated[
        bool, Meta(description="Whether several calls may come in one answer.")
    ]
    tool_choice: Annotated[msgspec.Raw, Meta(description="As it was sent.")]
    tools: Annotated[msgspec.Raw, Meta(description="As they were sent.")]


class RecordEcho(ToolsEcho, frozen=True, kw_only=True):
    """Add the options of a response about its record, and about the client."""

    previous_response_id: Annotated[
        str | None, Meta(description="Of the response that this one goes on with.")
    ] = None
    prompt_cache_key: Annotated[str | None, Meta(description="As it was sent.")] = None
    safety_identifier: Annotated[str | None, Meta(description="As it was sent.")] = None
    service_tier: Annotated[str, Meta(description="As it was sent; default if it was not.")]
    store: Annotated[bool, Meta(description="Whether the response is kept here.")]
    user: Annotated[str | None, Meta(description="As it was sent.")] = None
    metadata: Annotated[dict[str, str], Meta(description="As it was sent.")]


class ResponseObject(RecordEcho, frozen=True, kw_only=True):
    """Represent the response so far: the request's options, and the output."""

    id: Annotated[str, Meta(description="Ends with the request's id.")]
    object: Annotated[Literal["response"], Meta(description="Always response.")] = "response"
    created_at: Annotated[int, Meta(description="Seconds since 1970.")]
    completed_at: Annotated[
        int | None, Meta(description="Seconds since 1970; null where it is not complete.")
    ] = None
    status: Annotated[Status, Meta(description="completed, incomplete, failed or in_progress.")]
    background: Annotated[bool, Meta(description="Always false.")] = False
    error: Annotated[
        ResponseError | None, Meta(description="What went wrong, if something did.")
    ] = None
    incomplete_details: Annotated[
        IncompleteDetails | None, Meta(description="Why it is incomplete, if it is.")
    ] = None
    model: Annotated[str, Meta(description="Name of the served model.")]
    output: Annotated[list[Item], Meta(description="What was answered, in its order.")]
    usage: Annotated[
        ResponseUsage | None, Meta(description="Tokens of the request; null until it has ended.")
    ] = None

    def completed(
        self,
        status: ItemStatus,
        output: list[Item],
        usage: Usage,
        details: IncompleteDetails | None,
    ) -> ResponseObject:
        """Return the response at its end."""
        return msgspec.structs.replace(
            self,
            status=status,
            completed_at=int(time.time()) if details is None else None,
            output=output,
            usage=_usage(usage),
            incomplete_details=details,
        )


def _usage(usage: Usage) -> ResponseUsage:
    details = usage.completion_tokens_details
    return ResponseUsage(
        usage.prompt_tokens,
        InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
        usage.completion_tokens,
        OutputTokensDetails(0 if details is UNSET else details.reasoning_tokens),
        usage.total_tokens,
    )


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(description="Of the response that is gone.")]
    object: Annotated[Literal["response.deleted"], Meta(description="Always response.deleted.")] = (
        "response.deleted"
    )
    deleted: Annotated[Literal[True], Meta(description="Always true.")] = True


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    object: Annotated[Literal["list"], Meta(description="Always list.")] = "list"
    data: Annotated[list[dict[str, Any]], Meta(description="Items of the input.")]
    first_id: Annotated[str | None, Meta(description="Of the first item shown.")]
    last_id: Annotated[str | None, Meta(description="Of the last item shown; send it as after.")]
    has_more: Annotated[bool, Meta(description="Whether there are items behind it.")]


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v1/responses/input_tokens."""

    object: Annotated[
        Literal["response.input_tokens"], Meta(description="Always response.input_tokens.")
    ] = "response.input_tokens"
    input_tokens: Annotated[int, Meta(description="Tokens that the request's prompt has.")]
