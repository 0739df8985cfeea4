"""Schemas over all keywords: whatever is drawn from their grammars validates, what is not kept is
refused by name, and common forms are not refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.structured_output.grammar_draws import GrammarDraws, NoEndError
from tests.support.structured_output.schema_samples import SchemaSamples, validator_of

TOOLS = Path(__file__).parent / "data" / "tool_schemas.jsonl"
SIMPLE: list[Any] = [
    None, True, False, 0, 1, 5, -1, 2.5, 100, "", "a", "ab", "red", [], [1], ["a"], {}, {"a": 1},
    {"kind": "x"}, {"kind": "y"}, {"a": "a"}, [None, None],
]  # fmt: skip
NAMED_REASON = re.compile(r"the JSON schema's .+ at \$")


@pytest.fixture(scope="module")
def draws() -> GrammarDraws:
    return GrammarDraws()


class Tally:
    """What became of many schemas."""

    def __init__(self, draws: GrammarDraws, seed: int) -> None:
        self._draws = draws
        self._random = Random(seed)
        self.counts: Counter[str] = Counter()

    def take(self, schema: Any, times: int) -> None:
        """Draw from a schema and hold what comes to it; or hold its refusal to be right."""
        text = json.dumps(schema)
        try:
            grammar = self._draws.schema(schema)
        except ValueError as error:
            self._refused(schema, str(error))
            return
        validator = validator_of(schema)
        for _ in range(times):
            try:
                answer = self._draws.draw(grammar, self._random)
            except NoEndError:  # a rare character that chance does not find
                self.counts["undrawn"] += 1
                continue
            self.counts["pairs"] += 1
            faults = [error.message for error in validator.iter_errors(json.loads(answer))]
            assert not faults, (text, answer, faults)

    def _refused(self, schema: Any, reason: str) -> None:
        assert NAMED_REASON.search(reason), reason
        unfit = "leaves no value" in reason
        self.counts["no value" if unfit else "not kept"] += 1
        if unfit and '"format"' not in json.dumps(schema):  # which validators pass over
            fitting = [value for value in SIMPLE if validator_of(schema).is_valid(value)]
            assert not fitting, (schema, fitting)


def samples(seed: int, count: int) -> Iterator[Any]:
    made = SchemaSamples(Random(seed))
    return (made.schema() for _ in range(count))


def hold(tally: Tally, seed: int, count: int) -> None:
    for schema in samples(seed, count):
        tally.take(schema, 2)
    print(dict(tally.counts))
    assert tally.counts["pairs"] > 1.2 * count
    assert tally.counts["not kept"] < 0.36 * count  # half of them ask for something odd
    assert tally.counts["undrawn"] < 0.02 * count


def test_what_is_drawn_from_schemas_of_every_keyword_validates(draws: GrammarDraws) -> None:
    hold(Tally(draws, 1), seed=2, count=220)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_twenty_thousand_draws_validate(draws: GrammarDraws, seed: int) -> None:
    hold(Tally(draws, seed), seed=1000 + seed, count=1100)


def tool_schemas() -> list[Any]:
    return [json.loads(line) for line in TOOLS.read_text(encoding="utf-8").splitlines()]


def test_tools_of_the_field_are_kept(draws: GrammarDraws) -> None:
    tally = Tally(draws, 3)
    for schema in tool_schemas()[::4]:
        tally.take(schema, 1)
    assert tally.counts["not kept"] <= 2  # types that no draft has
    assert tally.counts["no value"] <= 1  # an array that must be one of some texts


@pytest.mark.slow
def test_all_tools_of_the_field_are_kept(draws: GrammarDraws) -> None:
    tally = Tally(draws, 4)
    for schema in tool_schemas():
        tally.take(schema, 3)
    print(dict(tally.counts))
    assert tally.counts["not kept"] <= 6
    assert tally.counts["no value"] <= 4
