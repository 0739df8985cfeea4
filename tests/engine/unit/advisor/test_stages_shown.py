"""The stages of a search for advice, as a terminal shows them."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import groupby

import pytest

from atom.advisor.advice import Detail, Stage, advise, one_fewer
from atom.entrypoints.advise.stages_shown import StagesShown
from tests.engine.unit.advisor.test_tiers_and_pairs import question


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_part_has_its_own_estimate_of_what_is_left() -> None:
    out, now = Terminal(), 0.0
    shown = StagesShown(out, clock=lambda: now)
    for doing, done in (
        ("simulating", 0),
        ("simulating", 2),
        ("its errors:", 0),
        ("its errors:", 1),
    ):
        shown.show(Stage(doing, "a on b", done, 4))
        now += 5.0
    assert out.getvalue().splitlines() == [
        "simulating a on b (1 of 4)",
        "simulating a on b (3 of 4, about 5 s left)",
        "its errors: a on b (1 of 4)",
        "its errors: a on b (2 of 4, about 15 s left)",
    ]


def test_a_log_gets_no_line() -> None:
    out = io.StringIO()
    StagesShown(out).show(Stage("simulating", "a", 0, 1))
    assert out.getvalue() == ""


@pytest.mark.parametrize("detail", Detail)
def test_a_search_tells_of_each_form_once_in_each_part(detail: Detail) -> None:
    stages: list[Stage] = []
    asked = replace(question(), max_devices=4)
    advice = advise(asked, stages.append, detail)
    parts = [list(found) for _, found in groupby(stages, key=lambda each: each.doing)]
    wanted = ["simulating", "its errors:", "the most that it serves:", "other rates:"]
    assert [part[0].doing for part in parts] == wanted[: 2 + list(Detail).index(detail)]
    for part in parts:
        numbers = [each.done for each in part]
        assert numbers == sorted(set(numbers))
        assert {each.of for each in part} == {part[0].of}
        assert 0 <= numbers[0] <= numbers[-1] < part[0].of
    for part in parts[1:3]:
        assert [each.label for each in part] == [row.label for row in advice.rows]
    stages.clear()
    if advice.chosen is not None and advice.chosen.devices > 1:
        one_fewer(asked, advice.chosen, detail, stages.append)
        assert stages
