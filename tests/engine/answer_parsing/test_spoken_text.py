"""Stop strings end the text for the user, and never the reasoning before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.reasoning_parser import (
    THINK,
    ReasoningMarks,
    ReasoningStart,
    continued_start,
)
from atom.answer_parsing.spoken_text import spoken_text
from atom.model_engine.front.stop_strings import SpokenStops, StopMatcher
from tests.engine.answer_parsing.pieces import content_of, cut, events_of
from tests.support.random_search import examples
from tests.support.server.scripted_model import in_turn, scripted

_PARTS = st.sampled_from(
    ["<think>", "</think>", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>",
     "<|end|><|start|>assistant", "<|return|>", "<", "a", "b", "ab", "\n", " ", "</th", "<|"]
)  # fmt: skip
_ANSWERS = st.lists(_PARTS, max_size=12).map("".join)
_STOPS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "aab"]), min_size=1, max_size=2)


def shown(parsing: AnswerParsing, stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """The answer's text up to a stop string, and that."""
    span = parsing.span
    matcher = StopMatcher(stops)
    found = matcher if span is None else SpokenStops(matcher, spoken_text(span))
    text = ""
    for piece in pieces:
        certain, ended = found.feed(piece)
        text += certain
        if ended:
            return text, found.found
    return text + found.flush(), None


@settings(max_examples=examples(72, more=80))
@given(st.data(), _ANSWERS, _STOPS, st.sampled_from(ReasoningStart), st.booleans())
def test_content_ends_where_it_would_alone_however_the_text_is_cut(
    data: st.DataObject, answer: str, stops: list[str], start: ReasoningStart, channels: bool
) -> None:
    parsing = AnswerParsing(reasoning=start, marks=None if channels else THINK)
    text, stop = shown(parsing, stops, [answer])
    assert shown(parsing, stops, data.draw(cut(answer))) == (text, stop)
    assert shown(parsing, stops, list(answer)) == (text, stop)
    assert answer.startswith(text)
    if not channels:  # messages are joined by line breaks there
        alone = StopMatcher(stops)
        content, ended = alone.feed(content_of(events_of(parsing, [answer])))
        content += "" if ended else alone.flush()
        assert content_of(events_of(parsing, [text])) == content
        assert stop == alone.found


@pytest.mark.parametrize(
    ("said", "marks", "start"),
    [
        ("<think>\nhmm", THINK, ReasoningStart.OPEN),
        ("<think>\nhmm\n</think>\n\nThe answer", THINK, ReasoningStart.OVER),
        ("<think>a</think>b<think>c", THINK, ReasoningStart.OPEN),
        ("The answer", THINK, ReasoningStart.OVER),
        ("\n", THINK, ReasoningStart.POSSIBLE),
        ("[THINK]hm", ReasoningMarks("[THINK]", "[/THINK]"), ReasoningStart.OPEN),
    ],
)
def test_the_last_mark_of_a_message_tells_how_the_answer_goes_on(
    said: str, marks: ReasoningMarks, start: ReasoningStart
) -> None:
    assert continued_start(said, marks) is start


ANSWER = "<think>\nthe language of\n\nthought</think>\n\nThe language is"


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/v1/chat/completions", {"stop": ["language"]}, "The "),
        ("/v1/chat/completions", {"stop": ["\n\n"]}, "The language is"),
        (
            "/v1/messages",
            {"model": "tiny", "stop_sequences": ["language"], "max_tokens": 500},
            "The ",
        ),
        ("/v1/responses", {"stop": ["language"]}, "The "),
    ],
)
async def test_every_api_reasons_to_the_end_before_a_stop_string_counts(
    tmp_path: Path, path: str, fields: dict[str, object], text: str
) -> None:
    async with scripted(tmp_path, in_turn(ANSWER), template="qwen3") as rig:
        said = [{"role": "user", "content": "Which?"}]
        body = {"input": "Which?"} if path.endswith("responses") else {"messages": said}
        answer = (await rig.post(path, **body, **fields)).json()
    if path.endswith("completions"):
        message = answer["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("the language of\n\nthought", text)
    elif path.endswith("messages"):
        kinds = [(part["type"], part.get("text")) for part in answer["content"]]
        assert kinds == [("thinking", None), ("text", text)]
        assert answer["stop_reason"] == "stop_sequence"
    else:
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["output"][1]["content"][0]["text"] == text


async def test_an_answer_goes_on_within_the_thought_that_its_message_opened(
    tmp_path: Path,
) -> None:
    async with scripted(tmp_path, in_turn("more</think>\n\nDone"), template="qwen3") as rig:
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "<think>\nhmm"},
        ]
        body = {"continue_final_message": True, "add_generation_prompt": False}
        answer = await rig.post("/v1/chat/completions", messages=messages, **body)
    message = answer.json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("more", "Done")
