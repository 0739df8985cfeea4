"""Converts a chat parser's events to a response's items, and to the events of the stream.

`OutputItems` takes `answer_parsing` events one by one and has at most one item open. Streamed and
whole answers both go through it, so that they end in the same items; a whole one drops the events.
No engine, no HTTP, no JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Protocol

from msgspec import UNSET

from atom.answer_parsing import CallArguments, CallStart, Content, Reasoning
from atom.answer_parsing import Event as Found
from atom.entrypoints.responses import events as told
from atom.entrypoints.responses.custom_input import CustomInput
from atom.entrypoints.responses.objects import (
    CustomToolCallItem,
    FunctionCallItem,
    Item,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    TextLogprob,
)
from atom.entrypoints.responses.reasoning_content import sealed
from atom.entrypoints.responses.tools import CallableTool

NewId = Callable[[str], str]  # from an item's prefix to its id


def new_id(prefix: str) -> str:
    return f"{prefix}_{token_hex(16)}"


class _OpenItem(Protocol):
    """An item that grows. index: its place in the output."""

    index: int

    def begin(self) -> list[told.Event]: ...

    def add(self, text: str, logprobs: list[TextLogprob]) -> list[told.Event]: ...

    def end(self, status: ItemStatus) -> list[told.Event]: ...

    def item(self, status: ItemStatus) -> Item: ...


class _Message:
    def __init__(self, index: int, new_id: NewId) -> None:
        self.index = index
        self.id = new_id("msg")
        self._texts: list[str] = []
        self._logprobs: list[TextLogprob] = []

    def begin(self) -> list[told.Event]:
        opened = MessageItem(self.id, [], "in_progress")
        return [
            told.OutputItemAdded(self.index, opened),
            told.ContentPartAdded(self.id, self.index, OutputText("")),
        ]

    def add(self, text: str, logprobs: list[TextLogprob]) -> list[told.Event]:
        self._texts.append(text)
        self._logprobs += logprobs
        return [told.OutputTextDelta(self.id, self.index, text, logprobs)]

    def end(self, status: ItemStatus) -> list[told.Event]:
        part = self._part()
        return [
            told.OutputTextDone(self.id, self.index, part.text, part.logprobs),
            told.ContentPartDone(self.id, self.index, part),
        ]

    def item(self, status: ItemStatus) -> MessageItem:
        return MessageItem(self.id, [self._part()], status)

    def _part(self) -> OutputText:
        return OutputText("".join(self._texts), logprobs=self._logprobs)


class _Reasoning:
    def __init__(self, index: int, new_id: NewId, *, seals: bool) -> None:
        """seals: the item has its encrypted_content."""
        self.index = index
        self.id = new_id("rs")
        self._seals = seals
        self._texts: list[str] = []

    def begin(self) -> list[told.Event]:
        opened = ReasoningItem(self.id, [], "in_progress")
        return [
            told.OutputItemAdded(self.index, opened),
            told.ContentPartAdded(self.id, self.index, ReasoningText("")),
        ]

    def add(self, text: str, logprobs: list[TextLogprob]) -> list[told.Event]:
        self._texts.append(text)
        return [told.ReasoningTextDelta(self.id, self.index, text)]

    def end(self, status: ItemStatus) -> list[told.Event]:
        text = "".join(self._texts)
        return [
            told.ReasoningTextDone(self.id, self.index, text),
            told.ContentPartDone(self.id, self.index, ReasoningText(text)),
        ]

    def item(self, status: ItemStatus) -> ReasoningItem:
        text = "".join(self._texts)
        content = sealed(text) if self._seals else UNSET
        return ReasoningItem(self.id, [ReasoningText(text)], status, content)


class _FunctionCall:
    def __init__(self, index: int, new_id: NewId, tool: CallableTool, call_id: str) -> None:
        self.index = index
        self.id = new_id("fc")
        self._tool = tool
        self._call_id = call_id
        self._texts: list[str] = []

    def begin(self) -> list[told.Event]:
        return [told.OutputItemAdded(self.index, self.item("in_progress"))]

    def add(self, text: str, logprobs: list[TextLogprob]) -> list[told.Event]:
        self._texts.append(text)
        return [told.CallArgumentsDelta(self.id, self.index, text)]

    def end(self, status: ItemStatus) -> list[told.Event]:
        arguments = "".join(self._texts)
        return [told.CallArgumentsDone(self.id, self.index, self._tool.name, arguments)]

    def item(self, status: ItemStatus) -> FunctionCallItem:
        return FunctionCallItem(
            self.id,
            self._call_id,
            self._tool.name,
            "".join(self._texts),
            status,
            self._tool.namespace or UNSET,
        )


class _CustomCall:
    def __init__(self, index: int, new_id: NewId, tool: CallableTool, call_id: str) -> None:
        self.index = index
        self.id = new_id("ctc")
        self._tool = tool
        self._call_id = call_id
        self._input = CustomInput()

    def begin(self) -> list[told.Event]:
        return [told.OutputItemAdded(self.index, self.item("in_progress"))]

    def add(self, text: str, logprobs: list[TextLogprob]) -> list[told.Event]:
        return self._told(self._input.feed(text))

    def end(self, status: ItemStatus) -> list[told.Event]:
        rest = self._told(self._input.finish())
        return [*rest, told.CustomInputDone(self.id, self.index, self._input.text)]

    def item(self, status: ItemStatus) -> CustomToolCallItem:
        return CustomToolCallItem(
            self.id,
            self._call_id,
            self._tool.name,
            self._input.text,
            status,
            self._tool.namespace or UNSET,
        )

    def _told(self, text: str) -> list[told.Event]:
        return [told.CustomInputDelta(self.id, self.index, text)] if text else []


class OutputItems:
    """Build one response's output. items: the finished ones, in order."""

    def __init__(
        self,
        tool_called: Callable[[str], CallableTool],
        call_id_of: Callable[[CallStart], str],
        *,
        seals_reasoning: bool = False,
        new_id: NewId = new_id,
    ) -> None:
        """tool_called: which of the client's tools a call names. call_id_of: a call's own id."""
        self.items: list[Item] = []
        self._tool_called = tool_called
        self._call_id_of = call_id_of
        self._seals = seals_reasoning
        self._new_id = new_id
        self._open: _OpenItem | None = None

    def add(self, found: Found, logprobs: list[TextLogprob] | None = None) -> list[told.Event]:
        """Add an event to the open item, or to a new one. logprobs: of a text's tokens."""
        if isinstance(found, CallStart):
            return self._begin(self._call(found))
        begun: list[told.Event] = []
        if isinstance(found, Content) and not isinstance(self._open, _Message):
            begun = self._begin(_Message(len(self.items) + self._ending, self._new_id))
        elif isinstance(found, Reasoning) and not isinstance(self._open, _Reasoning):
            index = len(self.items) + self._ending
            begun = self._begin(_Reasoning(index, self._new_id, seals=self._seals))
        assert self._open is not None
        assert not isinstance(found, CallArguments) or not isinstance(
            self._open, _Message | _Reasoning
        )
        return begun + self._open.add(found.text, logprobs or [])

    def end(self, status: ItemStatus) -> list[told.Event]:
        """End the open item; an empty answer is a message without text."""
        events: list[told.Event] = []
        if self._open is None and not self.items:
            events = self._begin(_Message(0, self._new_id))
        return events + self._end_open(status)

    def so_far(self) -> list[Item]:
        """List the items with the one that was open when the answer failed."""
        return [*self.items, *([] if self._open is None else [self._open.item("incomplete")])]

    @property
    def _ending(self) -> int:
        """Count the item that a new one ends."""
        return 0 if self._open is None else 1

    def _call(self, start: CallStart) -> _OpenItem:
        index = len(self.items) + self._ending
        tool = self._tool_called(start.name)
        kind = _CustomCall if tool.is_custom else _FunctionCall
        return kind(index, self._new_id, tool, self._call_id_of(start))

    def _begin(self, item: _OpenItem) -> list[told.Event]:
        ended = self._end_open("completed")
        self._open = item
        return ended + item.begin()

    def _end_open(self, status: ItemStatus) -> list[told.Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        events = item.end(status)
        self.items.append(item.item(status))
        return [*events, told.OutputItemDone(item.index, self.items[-1])]
