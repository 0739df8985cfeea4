"""Grammars are followed in processes that can stand still, be lost and be given up: their rows wait
or end, and other rows never notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams
from atom.tokenizer import Tokenizer
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.structured_output.matcher_processes import compile_servers, matcher_processes
from tests.support.waiting import wait_until

CHECKPOINT = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
WORDS = StructuredOutputsParams(regex="([a-z]+ ){30}")
OTHER = StructuredOutputsParams(regex="([0-9]+ ){20}")


@pytest.fixture(scope="module", params=[0, 1], ids=["at once", "a step behind"])
def driver(request: pytest.FixtureRequest) -> Iterator[CoreDriver]:
    driver = CoreDriver(str(CHECKPOINT), num_kv_blocks=512, max_num_seqs=16, depth=request.param)
    yield driver
    driver.guided.close()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return Tokenizer(CHECKPOINT).encode("What is ATOM?", add_special_tokens=False)


class Life:
    """Requests of one engine, and what has come of them so far."""

    def __init__(self, driver: CoreDriver, prompt: list[int]) -> None:
        self.driver = driver
        self._prompt = prompt
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, Any] = {}

    def add(self, asked: StructuredOutputsParams | None = None, **params: Any) -> int:
        sampling = SamplingParams(
            **{"max_tokens": 60, "temperature": 1.0, "seed": len(self.tokens), **params},
            structured_outputs=asked,
        )
        number = self.driver.add(self._prompt, sampling)
        self.tokens[number] = []
        return number

    def step(self) -> None:
        """One step, after a wait if there is nothing to do."""
        assert self.driver.has_work()
        result = self.driver.step()
        if result is not None:
            for number, run in result.runs():
                self.tokens[number] += run
            self.ends.update({row.request_id: row for row in result.finished})

    def until_length(self, number: int, length: int) -> None:
        while len(self.tokens[number]) < length:
            assert number not in self.ends
            self.step()

    def until_end(self, *numbers: int) -> None:
        while not self.ends.keys() >= set(numbers):
            self.step()


@pytest.fixture(scope="module")
def expected(driver: CoreDriver, prompt: list[int]) -> list[list[int]]:
    """Answers of the three requests that the tests make, left in peace."""
    life = Life(driver, prompt)
    numbers = [life.add(WORDS), life.add(None, max_tokens=120), life.add(OTHER)]
    life.until_end(*numbers)
    return [life.tokens[number] for number in numbers]


@pytest.mark.sampled(1)
def test_while_one_grammars_process_stands_still_all_other_rows_go_on_to_their_end(
    driver: CoreDriver, prompt: list[int]
) -> None:
    """The grammars are this test's own: processes of others' may be there still, idle."""
    before = {process.pid for process in matcher_processes()}
    words = StructuredOutputsParams(regex="([a-y]+ ){30}")
    numbers = StructuredOutputsParams(regex="([0-8]+ ){20}")

    def three_requests() -> tuple[Life, tuple[int, int, int]]:
        life = Life(driver, prompt)
        return life, (life.add(words), life.add(None, max_tokens=120), life.add(numbers))

    calm, in_peace = three_requests()
    calm.until_end(*in_peace)
    life, asked = three_requests()
    guided, plain, other = asked
    life.until_length(guided, 5)
    life.until_length(other, 1)
    first, second = [each for each in matcher_processes() if each.pid not in before]
    for process in (first, second):
        process.suspend()
    try:
        life.until_end(plain)
        assert not life.ends.keys() & {guided, other}
        second.resume()
        while not life.ends.keys() & {guided, other}:
            life.step()
        assert not life.ends.keys() >= {guided, other}
    finally:
        for process in (first, second):
            process.resume()
    life.until_end(guided, other)
    assert [life.tokens[n] for n in asked] == [calm.tokens[n] for n in in_peace]


@pytest.mark.sampled(1)
def test_the_rows_of_a_process_that_is_lost_go_on_where_they_were(
    driver: CoreDriver, prompt: list[int], expected: list[list[int]]
) -> None:
    life = Life(driver, prompt)
    guided, plain, other = life.add(WORDS), life.add(None, max_tokens=120), life.add(OTHER)
    life.until_length(guided, 5)
    for process in matcher_processes():
        process.kill()
    life.until_end(guided, plain, other)
    assert [life.tokens[number] for number in (guided, plain, other)] == expected


@pytest.mark.sampled(1)
def test_they_go_on_without_a_compile_server_too(
    driver: CoreDriver, prompt: list[int], expected: list[list[int]]
) -> None:
    life = Life(driver, prompt)
    guided, plain, other = life.add(WORDS), life.add(None, max_tokens=120), life.add(OTHER)
    life.until_length(guided, 5)
    processes = [*compile_servers(), *matcher_processes()]
    for process in processes:
        process.kill()
    life.until_end(guided, plain, other)
    assert [life.tokens[number] for number in (guided, plain, other)] == expected


def test_a_row_whose_process_stands_still_can_be_aborted(
    driver: CoreDriver, prompt: list[int]
) -> None:
    life = Life(driver, prompt)
    guided = life.add(StructuredOutputsParams(regex="[b-y]+"))
    life.until_length(guided, 3)
    processes = matcher_processes()
    for process in processes:
        process.suspend()
    try:
        plain = life.add(None)
        life.until_end(plain)  # the guided row is set back meanwhile
        assert [row.request_id for row in driver.pipeline.abort([guided])] == [guided]
        while driver.has_work():
            driver.step()  # what was submitted before
        assert driver.scheduler.blocks.pool.num_referenced == 0
    finally:
        for process in processes:
            process.resume()


@pytest.mark.sampled(1)
def test_processes_end_with_their_engine(driver: CoreDriver, prompt: list[int]) -> None:
    fresh = CoreDriver(str(CHECKPOINT), num_kv_blocks=256, max_num_seqs=2)
    before = {process.pid for process in matcher_processes()}
    life = Life(fresh, prompt)
    life.until_length(life.add(StructuredOutputsParams(regex="[c-x]+")), 2)
    new = [process for process in matcher_processes() if process.pid not in before]
    assert new
    fresh.guided.close()
    wait_until(lambda: not any(process.is_running() for process in new), "they have ended")
