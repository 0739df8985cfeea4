"""MessageShape: a conversation in the form that a chat template shows whole.

Templates differ in their input: a call's arguments as an object or as text, one call or several in
a message, the content of a message with calls as "" or none, turns that alternate, the system's
message only at the head. An unsuitable form is not always an error: the template takes another
branch, and silently drops the user's text, a call or a tool. `find_shape` finds the form once, at
start. Each step is linear in the messages. Knows no Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from atom.errors import RequestError
from atom.message_shape.arguments import read_arguments
from atom.message_shape.call_ids import CallIds, fitted
from atom.message_shape.call_results import in_content, named, paired, said_by_user
from atom.message_shape.contents import Message, as_parts, as_text, joined
from atom.message_shape.tool_shape import Filled, Tools, ToolShape
from atom.message_shape.turns import (
    SystemPlace,
    alternating,
    system_placed,
    with_user,
    without_empty,
)

# Writes calls, (name, arguments) each, as the model's family does.
WriteCalls = Callable[[Sequence[tuple[str, Any]]], str]


class Beside(Enum):
    """Places of text that accompanies calls. TOGETHER: in their message. APART: in a separate
    message before them."""

    TOGETHER = auto()
    APART = auto()


class ReasoningPlace(Enum):
    """Places of reasoning. FIELD: in a field of the message. PART: as a part of its content, of
    type thinking (Mistral). JOINED: in its field, followed by the text that accompanies calls, if a
    message with calls has no place for both."""

    FIELD = auto()
    PART = auto()
    JOINED = auto()


class Results(Enum):
    """Forms of the results of calls. TOOL: as messages of the role tool. NAMED: with the function's
    name. BY_USER: as messages of the user, since the template has no place for the role."""

    TOOL = auto()
    NAMED = auto()
    BY_USER = auto()


@dataclass(frozen=True, slots=True)
class CallShape:
    """The calls that a template shows. has_place: in a message's field tool_calls.
    arguments_as_text: if false, as an object. any_text: arguments that are not an object may be
    given as text. no_content: the content of a message that has calls and no text. single: one call
    to a message. orphans: results without a call are shown as well."""

    has_place: bool = True
    arguments_as_text: bool = False
    any_text: bool = True
    no_content: str | None = ""
    beside: Beside = Beside.TOGETHER
    single: bool = False
    ids: CallIds = CallIds.AS_SENT
    results: Results = Results.TOOL
    orphans: bool = True


@dataclass(frozen=True, slots=True)
class TurnShape:
    """The turns that a template shows. system: its place. alternates: the user's and the
    assistant's turns alternate, the user's first. needs_user: the user has a turn. filler: the text
    of an added turn. keeps_empty: the assistant's turn may be empty."""

    system: SystemPlace = SystemPlace.ANYWHERE
    alternates: bool = False
    needs_user: bool = False
    filler: str = ""
    keeps_empty: bool = True


@dataclass(frozen=True, slots=True)
class Shown:
    """The values that a template gets. variables: those by which it shows the tools."""

    messages: Sequence[Message]
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The shape of messages and tools that a chat template expects. part_roles: roles whose content
    is a list of parts. write_calls: writes calls as text, for a template without a place for calls;
    None if no family is known. left_out: the parts that the template drops in every shape."""

    part_roles: frozenset[str] = frozenset()
    turns: TurnShape = field(default_factory=TurnShape)
    calls: CallShape = field(default_factory=CallShape)
    reasoning: ReasoningPlace = ReasoningPlace.FIELD
    tools: ToolShape = field(default_factory=ToolShape)
    write_calls: WriteCalls | None = None
    left_out: tuple[str, ...] = ()

    def shown(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        filled: Filled = Filled.AS_SENT,
    ) -> Shown:
        """Convert messages and tools to the template's shape; filled: the least additions to tools.
        Raises `RequestError` for calls that have no place."""
        told: Sequence[Message] = paired(messages, single=self.calls.single)
        told, variables = self.tools.placed(told, tools, filled)
        told = self._with_calls(told)
        told = self._in_turn(told)
        told = fitted(told, self.calls.ids)
        return Shown([self._one(message) for message in told], variables)

    def _with_calls(self, messages: Sequence[Message]) -> Sequence[Message]:
        shape = self.calls
        if shape.results is not Results.TOOL:
            messages = named(messages)
        if shape.results is Results.BY_USER or not shape.orphans:
            messages = said_by_user(messages, all_results=shape.results is Results.BY_USER)
        if not shape.has_place:
            self._check_no_calls(messages)
            return in_content(messages, self._written)
        if shape.beside is Beside.APART:
            messages = [made for message in messages for made in _apart(message)]
        return messages

    def _check_no_calls(self, messages: Sequence[Message]) -> None:
        if self.write_calls is not None:
            return
        for index, message in enumerate(messages):
            if message.get("tool_calls"):
                raise RequestError(
                    f"messages[{index}].tool_calls: the model's chat template has no place for "
                    "calls, and would leave them out; send what they did as content",
                    param="messages",
                )

    def _written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        assert self.write_calls is not None
        functions = [call["function"] for call in calls]
        return self.write_calls(
            [(each["name"], read_arguments(each.get("arguments"))) for each in functions]
        )

    def _in_turn(self, messages: Sequence[Message]) -> Sequence[Message]:
        shape = self.turns
        told = system_placed(messages, shape.system)
        if not shape.keeps_empty:
            told = without_empty(told)
        if shape.needs_user:
            told = with_user(told, shape.filler)
        return alternating(told, shape.filler) if shape.alternates else told

    def _one(self, message: Message) -> dict[str, Any]:
        role, content = str(message.get("role")), message.get("content")
        made = dict(message)
        calls = message.get("tool_calls")
        if calls:
            made["tool_calls"] = [self._call(call) for call in calls]
            content = content or self.calls.no_content
        thought = message.get("reasoning_content")
        if thought and self.reasoning is ReasoningPlace.JOINED and calls and content:
            both = joined(thought, as_text(content))
            made |= dict.fromkeys(("reasoning_content", "thinking", "reasoning"), both)
            content = self.calls.no_content
        in_parts = role in self.part_roles and isinstance(content, str) and (content or not calls)
        made["content"] = as_parts(content) if in_parts else content
        if thought and self.reasoning is ReasoningPlace.PART:
            said = as_parts(content) if content else []
            made["content"] = [{"type": "thinking", "thinking": thought}, *said]
        return made

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = self._arguments(function.get("arguments"))
        return {**call, "function": {**function, "arguments": arguments}}

    def _arguments(self, sent: Any) -> Any:
        found = read_arguments(sent)
        if isinstance(found, str):  # any text that is not an object
            as_text = self.calls.arguments_as_text or self.calls.any_text
            return found if as_text else {"arguments": found}
        if not self.calls.arguments_as_text:
            return found
        as_sent = isinstance(sent, str) and sent.lstrip().startswith("{")
        return sent if as_sent else json.dumps(found, ensure_ascii=False)


def _apart(message: Message) -> Iterator[Message]:
    """Yield a message with the text that accompanies calls, and then one with the calls."""
    content = message.get("content")
    if not (message.get("tool_calls") and content):
        yield message
        return
    yield {"role": message["role"], "content": content}
    yield {**message, "content": ""}
