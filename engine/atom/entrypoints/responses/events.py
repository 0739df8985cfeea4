"""Typed events of a streamed response, each with its place in the order of all of them.

Structs alone; `output` decides which come when, and `frames` counts them.
"""

from __future__ import annotations

import msgspec

from atom.entrypoints.responses.objects import (
    Item,
    OutputText,
    ReasoningText,
    ResponseObject,
    TextLogprob,
)


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of all. sequence_number comes when it is written."""


class ResponseCreated(_Event, frozen=True, tag="response.created"):
    response: ResponseObject


class ResponseInProgress(_Event, frozen=True, tag="response.in_progress"):
    response: ResponseObject


class ResponseCompleted(_Event, frozen=True, tag="response.completed"):
    response: ResponseObject


class ResponseIncomplete(_Event, frozen=True, tag="response.incomplete"):
    response: ResponseObject


class ResponseFailed(_Event, frozen=True, tag="response.failed"):
    response: ResponseObject


class OutputItemAdded(_Event, frozen=True, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(_Event, frozen=True, tag="response.output_item.done"):
    output_index: int
    item: Item


class ContentPartAdded(_Event, frozen=True, tag="response.content_part.added"):
    item_id: str
    output_index: int
    part: OutputText | ReasoningText
    content_index: int = 0


class ContentPartDone(_Event, frozen=True, tag="response.content_part.done"):
    item_id: str
    output_index: int
    part: OutputText | ReasoningText
    content_index: int = 0


class OutputTextDelta(_Event, frozen=True, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    delta: str
    logprobs: list[TextLogprob] = []
    content_index: int = 0


class OutputTextDone(_Event, frozen=True, tag="response.output_text.done"):
    item_id: str
    output_index: int
    text: str
    logprobs: list[TextLogprob] = []
    content_index: int = 0


class ReasoningTextDelta(_Event, frozen=True, tag="response.reasoning_text.delta"):
    item_id: str
    output_index: int
    delta: str
    content_index: int = 0


class ReasoningTextDone(_Event, frozen=True, tag="response.reasoning_text.done"):
    item_id: str
    output_index: int
    text: str
    content_index: int = 0


class CallArgumentsDelta(_Event, frozen=True, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class CallArgumentsDone(_Event, frozen=True, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


class CustomInputDelta(_Event, frozen=True, tag="response.custom_tool_call_input.delta"):
    item_id: str
    output_index: int
    delta: str


class CustomInputDone(_Event, frozen=True, tag="response.custom_tool_call_input.done"):
    item_id: str
    output_index: int
    input: str


Event = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | CallArgumentsDelta
    | CallArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
