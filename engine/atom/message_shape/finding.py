"""find_shape: find the message shape in which a chat template shows messages whole.

Each trait is found by rendering probes, starting with the plainest option. A template that shows
messages as they were sent therefore gets them unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atom.message_shape import probes
from atom.message_shape.call_ids import CallIds
from atom.message_shape.probes import TURNS, Probe
from atom.message_shape.shape import (
    Beside,
    CallShape,
    MessageShape,
    ReasoningPlace,
    Results,
    Shown,
    TurnShape,
)
from atom.message_shape.signs import THINKING, RenderWith
from atom.message_shape.tool_shape import Filled, ToolPlace, ToolShape
from atom.message_shape.turns import SystemPlace

_TRIED_CALLS = [
    (as_text, nothing, results, ids)
    for results in Results
    for ids in (CallIds.AS_SENT, CallIds.NAMED)
    for as_text in (False, True)
    for nothing in ("", None)
]


class DroppedTextError(Exception):
    """No shape of a message makes the template show the user's text."""


def find_shape(
    render: RenderWith, *, mentions_calls: bool, variables: Iterable[str] = ()
) -> MessageShape:
    """Find the message shape of a template. mentions_calls: its source has a branch for calls.
    variables: that it reads.

    Raises `DroppedTextError` if the template would silently drop the user's text, or every call.
    """
    return _Finder(render).find(mentions_calls, sorted(variables))


class _Finder:
    def __init__(self, render: RenderWith) -> None:
        self._render_with = render
        self._rendered: dict[str, str | None] = {}  # shapes that differ often show the same

    def _render(self, shown: Shown, more: Mapping[str, Any] | None = None) -> str | None:
        given = json.dumps([shown.messages, shown.variables, more])
        if given not in self._rendered:
            self._rendered[given] = self._render_with(shown, more or {})
        return self._rendered[given]

    def find(self, mentions_calls: bool, variables: Sequence[str]) -> MessageShape:
        shape = MessageShape(part_roles=self._part_roles())
        shape = self._without_tools(shape)
        if not self._renders(shape):
            return replace(shape, left_out=("anything: it cannot render a plain question",))
        shape = self._turns(shape)
        shape = self._with_calls(shape)
        if mentions_calls and not shape.calls.has_place:
            raise DroppedTextError("mentions tool_calls, and leaves calls out")
        if shape.calls.has_place:
            shape = self._around_calls(shape)
        shape = self._tools(shape, variables)
        return replace(shape, left_out=tuple(self._left_out(shape)))

    def _renders(self, shape: MessageShape) -> bool:
        question = Probe([probes.ASKED], [probes.TEXT])
        return self._shows(shape, question) or self._shows(
            shape, replace(question, tools=probes.TOOLS)
        )

    def _without_tools(self, shape: MessageShape) -> MessageShape:
        """Find the value that templates need if no tools are given: some iterate over the tools
        without a check."""
        question = Probe([probes.ASKED], [probes.TEXT])
        nothing = replace(shape, tools=ToolShape(none=()))
        return self._best((shape, nothing), [question])

    def _left_out(self, shape: MessageShape) -> Iterator[str]:
        """Yield the parts of a conversation that the template drops in every shape."""
        calls = probes.whole_call(probes.SAID)
        tried: list[tuple[str, Probe]] = [
            ("what the assistant says beside a call", calls),
            ("what the assistant said beside calls of earlier turns", probes.ended_turn()),
            ("a second call of one message", probes.results_of_two()),
            ("what the user says behind a result", probes.after_results()),
        ]
        if shape.calls.has_place:
            yield from (name for name, probe in tried if not self._shows(shape, probe))
        thought = probes.thought_beside_call if shape.calls.has_place else probes.thought_answer
        if not self._shows_thought(shape, thought()):
            yield "reasoning that is sent back"
        told = shape.tools.place is ToolPlace.SYSTEM_TEXT
        if not told and not self._shows(shape, probes.tools_shown(*probes.TOOLS)):
            yield "the description or the parameters of tools"

    def _shows_thought(self, shape: MessageShape, probe: Probe) -> bool:
        shown = shape.shown(probe.messages, probe.tools)
        return any(_shown_plain(probe, self._render(shown, more)) for more in ({}, THINKING))

    def _text(self, shape: MessageShape, probe: Probe) -> str | None:
        shown = shape.shown(probe.messages, probe.tools)
        return self._render(shown)

    def _shows(self, shape: MessageShape, probe: Probe) -> bool:
        return probe.shown_by(self._text(shape, probe))

    def _best(self, shapes: Iterable[MessageShape], tried: Sequence[Probe]) -> MessageShape:
        """Choose the first shape that shows all probes, else the one that shows most."""
        best, most = None, -1
        for shape in shapes:
            count = sum(self._shows(shape, probe) for probe in tried)
            if count == len(tried):
                return shape
            if count > most:
                best, most = shape, count
        assert best is not None
        return best

    # ---- turns -------------------------------------------------------------------------------

    def _part_roles(self) -> frozenset[str]:
        return frozenset(
            role for role, probe in _content_probes() if self._wants_parts(role, probe)
        )

    def _wants_parts(self, role: str, messages: Sequence[dict[str, Any]]) -> bool:
        """Return whether text of this role is shown in parts alone."""
        shown = [
            self._render(MessageShape(part_roles=frozenset(roles)).shown(messages))
            for roles in ((), (role,), ("user", role))
        ]
        found = [text is not None and probes.TEXT in text for text in shown]
        if role == "user" and not any(found) and any(text is not None for text in shown):
            raise DroppedTextError("leaves out what the user says")
        return not found[0] and (found[1] or found[2])

    def _turns(self, shape: MessageShape) -> MessageShape:
        head = TURNS.late_system[:1]
        places = list(SystemPlace)
        if self._shows(_turned(shape, system=SystemPlace.HEAD), head[0]):
            places = places[:2]  # it has a place
        shape = self._best((_turned(shape, system=place) for place in places), TURNS.late_system)
        if not all(self._shows(shape, probe) for probe in TURNS.neighbours):
            taking_turns = (
                _turned(shape, alternates=True, filler=filler) for filler in ("", ".", "OK.")
            )
            shape = self._best((shape, *taking_turns), TURNS.neighbours)
        if not all(self._shows(shape, probe) for probe in TURNS.no_user):
            needing = (
                _turned(shape, needs_user=True, filler=filler)
                for filler in (shape.turns.filler, ".")
            )
            shape = self._best((shape, *needing), TURNS.no_user)
        return self._best((shape, _turned(shape, keeps_empty=False)), TURNS.empty)

    # ---- calls -------------------------------------------------------------------------------

    def _with_calls(self, plain: MessageShape) -> MessageShape:
        found: list[tuple[str, MessageShape]] = []
        for as_text, nothing, results, ids in _TRIED_CALLS:
            shape = _calling(
                plain, arguments_as_text=as_text, no_content=nothing, results=results, ids=ids
            )
            probe = probes.whole_call()
            text = self._text(shape, probe)
            if text is not None and probe.shown_by(text):
                found.append((text, shape))
            if found and (as_text, nothing) == (True, None):
                break  # the plainest that shows results
        if not found:
            return self._without_place(plain)
        _, shape = min(found, key=lambda one: _faults(one[0]))
        return shape

    def _without_place(self, plain: MessageShape) -> MessageShape:
        """Find the shape for calls that are written into the content, with their results if the
        template shows them."""
        shape = _calling(plain, has_place=False)
        shown = Probe(
            [
                probes.ASKED,
                probes.said("assistant", probes.SAID),
                probes.result(probes.FOREIGN_ID),
            ],
            [probes.TEXT, probes.SAID, probes.RESULT],
            tools=probes.TOOLS,
        )
        tried = (
            _calling(shape, results=results, ids=ids)
            for results in Results
            for ids in (CallIds.AS_SENT, CallIds.NINE)
        )
        return self._best(tried, [shown])

    def _around_calls(self, shape: MessageShape) -> MessageShape:
        two = probes.results_of_two()
        shape = self._best((shape, _calling(shape, single=True)), [two])
        foreign = probes.whole_call(identity=probes.FOREIGN_ID)
        shape = self._best((_calling(shape, ids=ids) for ids in CallIds), [foreign, two])
        if f"functions.{probes.NAME}:0" in (self._text(shape, foreign) or ""):
            shape = _calling(shape, ids=CallIds.NAMED)  # results refer to these
        beside = probes.whole_call(probes.SAID)
        shape = self._best((_calling(shape, beside=each) for each in Beside), [beside])
        shape = self._with_reasoning(shape)
        shape = self._best((shape, _calling(shape, orphans=False)), [probes.orphan()])
        shape = self._system_beside_calls(shape)
        if not self._shows(shape, probes.after_results()):
            shape = self._best((_turned(shape, alternates=True), shape), [probes.after_results()])
        raw = self._raw(shape)
        return _calling(shape, any_text=raw)

    def _system_beside_calls(self, shape: MessageShape) -> MessageShape:
        """Find the system's place if a conversation ends with a result: in the same user's turn as
        in a conversation that ends with a question."""
        tried = [*TURNS.late_system[:1], probes.head_before_call()]
        if all(self._shows(shape, probe) for probe in tried):
            return shape
        question = TURNS.late_system[-1]
        as_now = self._text(shape, question)
        places = [SystemPlace.LAST_USER, SystemPlace.FIRST_USER]
        places.sort(key=lambda place: self._text(_turned(shape, system=place), question) != as_now)
        return self._best((shape, *(_turned(shape, system=place) for place in places)), tried)

    def _with_reasoning(self, shape: MessageShape) -> MessageShape:
        """Find the place of reasoning in messages with calls, and with calls and text, that drops
        no call."""
        alone, both = probes.thought_beside_call(), probes.thought_beside_call(probes.SAID)
        shown = [
            place
            for place in (ReasoningPlace.FIELD, ReasoningPlace.PART)
            if self._shows_thought(replace(shape, reasoning=place), alone)
        ]
        if not shown:
            return shape
        for place in (shown[0], ReasoningPlace.JOINED):
            tried = replace(shape, reasoning=place)
            if all(self._shows_thought(tried, probe) for probe in (alone, both)):
                return tried
        return replace(shape, reasoning=shown[0])

    def _raw(self, shape: MessageShape) -> bool:
        """Return whether arguments that are not an object may be given as text."""
        written = f'"{probes.KEY}": "{probes.VALUE}'
        message = probes.called()
        message["tool_calls"][0]["function"]["arguments"] = "{" + written
        text = self._render(shape.shown([probes.ASKED, message, probes.result()], probes.TOOLS))
        return text is not None and written in text

    # ---- tools -------------------------------------------------------------------------------

    def _tools(self, shape: MessageShape, variables: Sequence[str]) -> MessageShape:
        """Find the place of tools, and the additions that they need."""
        whole = probes.tools_shown(*probes.TOOLS)
        for place in _tool_places(variables):
            found = replace(shape, tools=replace(place, none=shape.tools.none))
            if self._shows(found, whole):
                break
        else:
            named = probes.tools_shown(*probes.TOOLS, described=False, key=False)
            found = shape
            if not self._shows(shape, named):
                return replace(shape, tools=replace(shape.tools, place=ToolPlace.SYSTEM_TEXT))
        lacking = [
            probes.tools_shown(probes.tool(description=None), described=False),
            probes.tools_shown(probes.tool(parameters=None), key=False),
            probes.tools_shown(
                probes.tool(description=None, parameters=None), described=False, key=False
            ),
            probes.tools_shown(probes.untyped_tool()),
        ]
        filled = (
            replace(found, tools=replace(found.tools, filled=each))
            for each in (Filled.AS_SENT, Filled.FIELDS, Filled.PROPERTIES)
        )
        found = self._best(filled, lacking)
        # Some templates show tools only with the user's text.
        alone = replace(whole, messages=[probes.said("system", probes.HEAD)])
        alone = replace(alone, loose=[word for word in whole.loose if word != probes.TEXT])
        return self._best((found, _turned(found, needs_user=True)), [alone])


def _shown_plain(probe: Probe, text: str | None) -> bool:
    """Return whether reasoning is shown as text, and not as the value of a message's field."""
    written = (f"'thinking': '{probes.THOUGHT}", f'"thinking": "{probes.THOUGHT}')
    return probe.shown_by(text) and not any(each in (text or "") for each in written)


def _turned(shape: MessageShape, **traits: Any) -> MessageShape:
    turns: TurnShape = replace(shape.turns, **traits)
    return replace(shape, turns=turns)


def _calling(shape: MessageShape, **traits: Any) -> MessageShape:
    calls: CallShape = replace(shape.calls, **traits)
    return replace(shape, calls=calls)


def _tool_places(variables: Sequence[str]) -> Iterator[ToolShape]:
    yield ToolShape()
    yield ToolShape(place=ToolPlace.SYSTEM_KEY)
    yield ToolShape(place=ToolPlace.SYSTEM_KEY, bare=True, as_text=True)
    for name in variables:
        if "tools" in name and name != "tools":
            yield ToolShape(name=name, bare=True)
        elif name == "functions":
            yield ToolShape(name=name, bare=True, as_text=True)


def _content_probes() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    user = probes.said("user", probes.TEXT)
    other = probes.said("user", "xqotherqx")
    yield "user", [user]
    yield "system", [probes.said("system", probes.TEXT), other]
    yield "assistant", [other, probes.said("assistant", probes.TEXT), other]


def _faults(text: str) -> tuple[bool, int]:
    """Return how well a call is shown, least is best: not as Python writes an object, or as a text
    within a text, and without None for a text."""
    value = probes.VALUE
    return f"'{value}'" in text or f'\\"{value}' in text, text.count("None")
