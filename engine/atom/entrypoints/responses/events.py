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


class _OfResponse(_Event, frozen=True):
    response: ResponseObject


class _OfItem(_Event, frozen=True):
    output_index: int
    item: Item


class _WithinItem(_Event, frozen=True):
    item_id: str
    output_index: int


class _OfPart(_WithinItem, frozen=True):
    part: OutputText | ReasoningText
    content_index: int = 0


class ResponseCreated(_OfResponse, frozen=True, tag="response.created"): ...


class ResponseInProgress(_OfResponse, frozen=True, tag="response.in_progress"): ...


class ResponseCompleted(_OfResponse, frozen=True, tag="response.completed"): ...


class ResponseIncomplete(_OfResponse, frozen=True, tag="response.incomplete"): ...


class ResponseFailed(_OfResponse, frozen=True, tag="response.failed"): ...


class OutputItemAdded(_OfItem, frozen=True, tag="response.output_item.added"): ...


class OutputItemDone(_OfItem, frozen=True, tag="response.output_item.done"): ...


class ContentPartAdded(_OfPart, frozen=True, tag="response.content_part.added"): ...


class ContentPartDone(_OfPart, frozen=True, tag="response.content_part.done"): ...


class OutputTextDelta(_WithinItem, frozen=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TextLogprob] = []
    content_index: int = 0


class OutputTextDone(_WithinItem, frozen=True, tag="response.output_text.done"):
    text: str
    logprobs: list[TextLogprob] = []
    content_index: int = 0


class ReasoningTextDelta(_WithinItem, frozen=True, tag="response.reasoning_text.delta"):
    delta: str
    content_index: int = 0


class ReasoningTextDone(_WithinItem, frozen=True, tag="response.reasoning_text.done"):
    text: str
    content_index: int = 0


class CallArgumentsDelta(_WithinItem, frozen=True, tag="response.function_call_arguments.delta"):
    delta: str


class CallArgumentsDone(_WithinItem, frozen=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(_WithinItem, frozen=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(_WithinItem, frozen=True, tag="response.custom_tool_call_input.done"):
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
