"""Calls of the Berkeley Function Calling Leaderboard, in every family's notation.

bfcl_sample.json: 177 entries of bfcl-eval 2026.3.23 (Apache-2.0, the Gorilla project), each
with the tools that its answer calls, descriptions left out and types named as JSON schema does, and
the calls of its first accepted answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.reasoning_parser import THINK, ReasoningStart
from tests.engine.answer_parsing.pieces import calls_of, content_of, events_of
from tests.engine.answer_parsing.written import WRITERS

SAMPLE: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "bfcl_sample.json").read_text(encoding="utf-8")
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", WRITERS)
def test_calls_of_the_leaderboard_are_read_with_their_types(name: str) -> None:
    family, write = WRITERS[name]
    channels = name == "openai"
    for entry in SAMPLE:
        made = [(called, values) for called, values in entry["calls"]]
        parsing = AnswerParsing(
            reasoning=ReasoningStart.POSSIBLE if channels else ReasoningStart.OVER,
            marks=None if channels else THINK,
            calls=family,
            tools=entry["tools"],
        )
        text = write(made)
        pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
        events = events_of(parsing, pieces, ended=True)
        found = [(called, json.loads(arguments)) for called, arguments in calls_of(events)]
        assert found == made, entry["id"]
        assert content_of(events) == ""
