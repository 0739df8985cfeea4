"""Any sequence of what parsers find, cut anyhow, is told in a well-formed stream that ends in the
same items as the whole answer."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.answer_parsing import CallArguments, CallStart, Content, Event, Reasoning
from atom.entrypoints.responses.custom_input import CustomInput, as_arguments
from atom.entrypoints.responses.output import OutputItems
from atom.entrypoints.responses.reasoning_content import opened, sealed
from atom.entrypoints.responses.tools import chat_tools
from tests.engine.responses.lifecycle import checked_response
from tests.support.random_search import examples

TOOLS = chat_tools(
    [
        {"type": "function", "name": "weather"},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
    ]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Text as a model may write it for a custom tool: JSON with escapes of every kind, or none at all.
INPUTS = st.one_of(
    TEXTS.map(as_arguments),
    TEXTS.map(lambda text: json.dumps({"input": text})),
    TEXTS,
    st.sampled_from(
        ['{"input": "\\ud83d\\ude00\\n"}', '{"input": "a\\', '{"input": "\\ud83d"}', ""]
    ),
)


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """Whole parts of an answer, in any order."""
    found: list[Event] = []
    calls = itertools.count()
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call", "custom"]), max_size=5)):
        if kind == "text":
            found.append(Content(draw(TEXTS.filter(bool))))
        elif kind == "thought":
            found.append(Reasoning(draw(TEXTS.filter(bool))))
        else:
            index = next(calls)
            name = "patch" if kind == "custom" else draw(st.sampled_from(["weather", "read"]))
            found += [CallStart(index, name), CallArguments(index, draw(INPUTS))]
    return found


def pieces_of(events: list[Event], data: st.DataObject) -> list[Event]:
    cut: list[Event] = []
    for event in events:
        if isinstance(event, CallStart):
            cut.append(event)
            continue
        size = data.draw(st.integers(1, 5))
        texts = [event.text[at : at + size] for at in range(0, len(event.text), size)]
        cut += [msgspec.structs.replace(event, text=text) for text in texts]
    return cut


def output() -> OutputItems:
    numbers = itertools.count()
    return OutputItems(
        TOOLS.called,
        lambda start: f"call_{start.index}",
        seals_reasoning=True,
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
    )


def told(events: list[Event]) -> list[dict[str, Any]]:
    items = output()
    found = [event for each in events for event in items.add(each)] + items.end("completed")
    response = {"status": "in_progress", "output": []}
    whole = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        *msgspec.to_builtins(found),
        {
            "type": "response.completed",
            "response": {"status": "completed", "output": msgspec.to_builtins(items.items)},
        },
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(whole)]


@given(answers(), st.data())
@settings(max_examples=examples(72, more=80))
def test_any_cut_is_a_well_formed_stream_that_ends_as_the_whole(
    events: list[Event], data: st.DataObject
) -> None:
    whole = checked_response(told(events))
    cut = checked_response(told(pieces_of(events, data)))
    assert cut == whole
    assert [item["type"] for item in whole["output"]] == (kinds_of(events) or ["message"])


def kinds_of(events: list[Event]) -> list[str]:
    """Each call is an item, and texts beside each other are one."""
    kinds: list[str] = []
    for event in events:
        if isinstance(event, CallStart):
            kinds.append("custom_tool_call" if event.name == "patch" else "function_call")
        elif not isinstance(event, CallArguments):
            kind = "message" if isinstance(event, Content) else "reasoning"
            kinds += [] if kinds[-1:] == [kind] else [kind]
    return kinds


@given(TEXTS, st.data())
@settings(max_examples=examples(72, more=80))
def test_a_custom_tools_text_comes_whole_out_of_arguments_cut_anyhow(
    text: str, data: st.DataObject
) -> None:
    for arguments in (as_arguments(text), json.dumps({"input": text}, indent=1), text):
        reader, got = CustomInput(), []
        rest = arguments
        while rest:
            size = data.draw(st.integers(1, 8))
            got.append(reader.feed(rest[:size]))
            rest = rest[size:]
        got.append(reader.finish())
        assert "".join(got) == reader.text == text


@given(TEXTS)
def test_reasoning_that_is_handed_back_is_what_was_handed_out(text: str) -> None:
    assert opened(sealed(text)) == text


def test_what_another_server_sealed_is_no_reasoning_of_ours() -> None:
    assert opened("gAAAAABo") is None
    assert opened("atom1.%%%") is None
    assert opened("atom1.gA==") is None
