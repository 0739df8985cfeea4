"""Whatever grammar one request brings, its neighbours get their tokens, and it ends itself.

Nothing is timed: a neighbour's steps go on while the hostile row waits, which is counted in
tokens, and what it gets is what it gets alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams
from atom.tokenizer import Tokenizer
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.structured_output.hostile_grammars import hostile

CHECKPOINT = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
NEIGHBOUR_TOKENS = 40
HOSTILE_TOKENS = 30
SHAPED = StructuredOutputsParams(regex="([a-z]+ ){50}")
MANY = dict(hostile((2, 6, 25, 100)))
DAILY = (
    "nullable pairs, 25",
    "both sides, 6",
    "deep, 2",
    "stars in a row, 25",
    "counts in counts, 25",
    "unicode classes, 6",
    "alike objects, 6",
    "a tag, 25",
)


class Neighbourhood:
    """An engine in which a plain and a guided neighbour begin anew as often as they end, until a
    hostile request has ended."""

    def __init__(self) -> None:
        self.driver = CoreDriver(str(CHECKPOINT), num_kv_blocks=512, max_num_seqs=16, depth=1)
        tokenizer = Tokenizer(CHECKPOINT)
        self._prompt = tokenizer.encode("What is ATOM?", add_special_tokens=False)
        self._alone = {guided: self._answer(guided) for guided in (False, True)}

    def _add(self, guided: bool) -> int:
        return self.driver.add(
            self._prompt,
            SamplingParams(
                max_tokens=NEIGHBOUR_TOKENS,
                temperature=1.0,
                seed=5,
                ignore_eos=True,
                structured_outputs=SHAPED if guided else None,
            ),
        )

    def _answer(self, guided: bool) -> list[int]:
        number, tokens = self._add(guided), []
        while self.driver.has_work():
            result = self.driver.step()
            for of, run in result.runs() if result else ():
                assert of == number
                tokens += run
        return tokens

    def add_hostile(self, asked: StructuredOutputsParams) -> int:
        params = SamplingParams(
            max_tokens=HOSTILE_TOKENS, temperature=1.0, seed=1, structured_outputs=asked
        )
        return self.driver.add(self._prompt, params)

    def live_beside(self, foe: int, others: set[int]) -> tuple[FinishedRow, list[int], int]:
        """How the hostile request ends; its tokens; and the neighbours' tokens meanwhile, of whole
        answers that were each as without it. others: hostile ones beside it."""
        open_ones = {self._add(guided): guided for guided in (False, True)}
        tokens: dict[int, list[int]] = {number: [] for number in (foe, *open_ones)}
        end, meanwhile = None, 0
        while end is None or open_ones:
            assert self.driver.has_work()
            result = self.driver.step()
            for number, run in result.runs() if result else ():
                if number not in others:
                    tokens[number] += run
                    meanwhile += 0 if number == foe or end else len(run)
            for row in result.finished if result else ():
                if row.request_id == foe:
                    end = row
                if row.request_id in {foe, *others}:
                    continue
                guided = open_ones.pop(row.request_id)
                assert tokens[row.request_id] == self._alone[guided]
                if end is None:
                    number = self._add(guided)
                    open_ones[number], tokens[number] = guided, []
        return end, tokens[foe], meanwhile


@pytest.fixture(scope="module")
def neighbourhood() -> Iterator[Neighbourhood]:
    made = Neighbourhood()
    yield made
    made.driver.guided.close()


def check(
    neighbourhood: Neighbourhood, asked: StructuredOutputsParams, beside: Sequence[int] = ()
) -> None:
    driver = neighbourhood.driver
    before = driver.pipeline.stats().guided_ended_for_work_total
    foe = neighbourhood.add_hostile(asked)
    end, tokens, meanwhile = neighbourhood.live_beside(foe, set(beside))
    ended = driver.pipeline.stats().guided_ended_for_work_total - before
    if end.reason == "error":
        assert end.param == "structured_outputs"
        assert "make it" in end.detail
        assert meanwhile > 0 or not tokens  # it may end at its first mask
        assert ended >= ("less ambiguous" in end.detail)
    else:
        assert 0 < len(tokens) <= HOSTILE_TOKENS
        assert ended == 0 or beside
    driver.pipeline.abort(beside)
    assert driver.scheduler.blocks.pool.num_referenced == 0
    assert len(driver.guided.rows) == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DAILY)
def test_neighbours_go_on_and_the_request_ends(neighbourhood: Neighbourhood, name: str) -> None:
    check(neighbourhood, MANY[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY.keys() - DAILY)
def test_at_more_sizes(neighbourhood: Neighbourhood, name: str) -> None:
    check(neighbourhood, MANY[name])


def test_many_hostile_requests_at_once_cost_nobody_else(neighbourhood: Neighbourhood) -> None:
    foes = [neighbourhood.add_hostile(MANY[name]) for name in DAILY]
    check(neighbourhood, MANY[DAILY[0]], beside=foes)
