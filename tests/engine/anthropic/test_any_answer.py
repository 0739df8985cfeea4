"""However an answer comes in pieces, its events keep to the lifecycle of a message, and put
together what the whole answer holds: by rules written here, and by Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from atom.answer_parsing import (
    AnswerParsing,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from atom.entrypoints.anthropic.answers import ToolUseBlock
from atom.entrypoints.anthropic.message_events import MessageEvents, blocks_of, input_of
from atom.entrypoints.anthropic.sealed_thinking import sealed, signature_of, unsealed
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.chat_parsing import events_of
from atom.entrypoints.openai.choices import AnswerHead, Answers, Piece, Shown
from atom.entrypoints.openai.responses import PromptTokensDetails, Usage
from atom.model_engine.request import FinishReason, RequestOutput
from tests.engine.answer_parsing.pieces import answers, cut, family_answers, parsings
from tests.support.random_search import examples


@cache
def client_event() -> TypeAdapter[Any]:
    """Return the official client's event; to import the client takes a second."""
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
HEAD = AnswerHead("msg_1", 0, "tiny")


def output(text: str, reason: FinishReason | None = None) -> RequestOutput:
    return RequestOutput(
        "r", [1], text, reason is not None, reason, reason and str(reason), 10, 5, 4
    )


def answering(parsing: AnswerParsing | None, last: RequestOutput, *, seals: bool) -> Answers:
    """Answers that have come to their end."""
    usage = Usage(10, 5, 15, PromptTokensDetails(4))
    shown = Shown(parsing=parsing, seals_reasoning=seals, asked_tokens=5)
    group = SimpleNamespace(num_prompt_tokens=[10])
    found = SimpleNamespace(shown=shown, group=group, lasts=[last], usage=lambda: usage)
    return cast("Answers", found)


def stream(answers: Answers, pieces: Sequence[str], last: RequestOutput) -> Iterator[Any]:
    """The events of the pieces, as frames.py asks for them."""
    shape = MessageEvents(answers, HEAD, with_usage=False)
    data = shape.opening()
    for text in pieces:
        if shape.shows_as_is(0):
            data += shape.text(0, text) if text else b""
        else:
            data += shape.piece(0, Piece(text, None, None, output(text)))
    data += shape.piece(0, Piece("", None, None, last)) + shape.closing()
    for entry in data.decode().removesuffix("\n\n").split("\n\n"):
        name, body = entry.split("\n")
        event = json.loads(body.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        yield event


def put_together(events: Sequence[Any]) -> list[dict[str, Any]]:
    """The blocks of a stream, whose every event is where it belongs."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "arguments": ""})
        assert event["index"] == len(blocks) - 1
        if event["type"] == "content_block_delta":
            assert is_open
            delta, block = event["delta"], blocks[-1]
            key = DELTAS[block["type"]][delta["type"]]
            assert delta[key]
            block[key if key != "partial_json" else "arguments"] += delta[key]
        is_open = event["type"] != "content_block_stop"
    assert not is_open
    for block in blocks:
        arguments = block.pop("arguments")
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = input_of(arguments)
    return blocks


def without_ids(blocks: Sequence[Any]) -> list[Any]:
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


def check(parsing: AnswerParsing, answer: str, pieces: Sequence[str], ended: bool) -> None:
    reason = FinishReason.STOP if ended else FinishReason.LENGTH
    last = output("", reason)
    for seals in (False, True):
        whole = blocks_of(events_of(parsing, answer, str(reason)), parsing, seals=seals)
        shown = without_ids(json.loads(to_json(whole)))
        events = list(stream(answering(parsing, last, seals=seals), pieces, last))
        assert without_ids(put_together(events)) == shown
        called = any(isinstance(block, ToolUseBlock) for block in whole)
        expected = "max_tokens" if not ended else "tool_use" if called else "end_turn"
        assert events[-2]["delta"] == {"stop_reason": expected, "stop_sequence": None}
        assert events[-2]["usage"]["input_tokens"] == 6
        if all(is_json(block) for block in whole):
            assert without_ids(by_its_client(events)) == shown
        thoughts = [block for block in shown if block["type"] == "thinking"]
        assert all(bool(block["thinking"]) is not seals for block in thoughts)


def is_json(block: Any) -> bool:
    """Its client raises where arguments are none, as everything that reads them does."""
    return not (isinstance(block, ToolUseBlock) and "arguments" in block.input)


def by_its_client(events: Sequence[Any]) -> list[Any]:
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] not in ("ping", "message_stop"):
            snapshot = accumulate_event(
                event=client_event().validate_python(event),
                current_snapshot=snapshot,
                json_bufs=buffers,
            )
    keys = ("type", "text", "thinking", "signature", "name", "input")
    return [
        {key: value for key, value in block.to_dict().items() if key in keys}
        for block in snapshot.content
    ]


@settings(max_examples=examples(72, more=80))
@given(st.data(), parsings, answers, st.booleans())
def test_any_answer_is_the_same_in_pieces(
    data: st.DataObject, parsing: AnswerParsing, answer: str, ended: bool
) -> None:
    check(parsing, answer, data.draw(cut(answer)), ended)


@settings(max_examples=examples(48, more=200))
@given(st.data(), family_answers(), st.booleans())
def test_so_is_any_answer_of_a_family(
    data: st.DataObject, case: tuple[AnswerParsing, str], ended: bool
) -> None:
    parsing, answer = case
    check(parsing, answer, data.draw(cut(answer)), ended)
    check(parsing, answer, answer, ended)  # character by character


def calls(name: str, pieces: Sequence[str]) -> list[Event]:
    return [CallStart(0, name), *(CallArguments(0, piece) for piece in pieces)]


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
_ARGUMENTS = st.dictionaries(_TEXTS, st.integers() | _TEXTS, max_size=2).map(json.dumps)
RUNS: st.SearchStrategy[list[Event]] = st.one_of(
    _TEXTS.map(lambda text: [Content(text)]),
    _TEXTS.map(lambda text: [Reasoning(text)]),
    st.builds(calls, st.sampled_from(["weather", "time"]), _ARGUMENTS.map(list)),
)


class Told:
    """An `AnswerParsing`, and its parser, whose answer holds these events: a piece's are those that
    its text numbers."""

    calls = None
    passes_on = False

    def __init__(self, events: Sequence[Event]) -> None:
        self._left = list(events)
        self.called = any(isinstance(event, CallStart) for event in events)

    def parser(self) -> Told:
        return self

    def counter(self) -> None:
        return None

    def feed(self, piece: str) -> list[Event]:
        told, self._left = self._left[: len(piece)], self._left[len(piece) :]
        return told

    def finish(self, *, ended: bool) -> list[Event]:
        return self._left


@settings(max_examples=examples(72, more=80))
@given(st.lists(RUNS, max_size=6), st.lists(st.integers(0, 4), max_size=6), st.booleans())
def test_so_is_any_sequence_of_events(
    runs: Sequence[list[Event]], counts: Sequence[int], seals: bool
) -> None:
    events = [event for run in runs for event in run]
    last = output("", FinishReason.STOP)
    parsing = cast("AnswerParsing", Told(events))
    whole = without_ids(json.loads(to_json(blocks_of(events, parsing, seals=seals))))
    pieces = ["x" * count for count in counts]
    streamed = list(stream(answering(parsing, last, seals=seals), pieces, last))
    assert without_ids(put_together(streamed)) == whole == without_ids(by_its_client(streamed))


@given(st.text())
def test_sealed_thinking_comes_back_whole_and_other_signatures_say_nothing(thinking: str) -> None:
    assert unsealed(sealed(thinking)) == thinking
    assert unsealed(signature_of(thinking)) == ""
    assert unsealed(f"atom:{thinking}é") == ""


def test_a_call_that_was_cut_has_the_arguments_that_are_complete() -> None:
    assert input_of('{"city": "Paris", "days": [1, 2], "text": "It i') == {
        "city": "Paris",
        "days": [1, 2],
    }
    assert input_of("") == {}
