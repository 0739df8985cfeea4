"""Figures of single clients: bounded series, and nothing of a sum gets lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from atom.client_figures import (
    MOST_CLIENTS,
    OTHER,
    UNKNOWN,
    ClientCounts,
    ClientFigures,
    merge_clients,
)


def total(told: dict[str, ClientCounts], field: str) -> float:
    return sum(getattr(counts, field) for counts in told.values())


@pytest.mark.parametrize("seed", range(5))
def test_any_number_of_clients_is_a_bounded_number_of_series(seed: int) -> None:
    draw = random.Random(seed)
    figures = ClientFigures()
    expected: Counter[str] = Counter()
    last_other = 0
    for number in range(2000):
        client = draw.choice(["big", "big", f"c{draw.randint(0, 300)}", f"new{number}"])
        figures.came(client)
        figures.began(client, 0.5)
        figures.ended(client, 10, 1000 if client == "big" else 3)
        expected.update(requests=1, prompt_tokens=10)
        expected.update(generation_tokens=1000 if client == "big" else 3)
        told = figures.told([("big", True), (client, False)])
        assert len(told) <= MOST_CLIENTS + 1
        for field, count in expected.items():
            assert total(told, field) == count
        assert total(told, "waiting") == total(told, "running") == 1
        assert told[OTHER].requests >= last_other, "a counter never goes back"
        last_other = told[OTHER].requests
    assert figures.told([])["big"].requests > 900, "the one with most is told of by itself"


def test_requests_without_a_client_are_told_of_too() -> None:
    figures = ClientFigures()
    figures.came("")
    assert figures.told([("", True)])[UNKNOWN] == ClientCounts(running=1, requests=1)


def test_processes_tell_sums() -> None:
    one = {"a": ClientCounts(waiting=1, requests=2), OTHER: ClientCounts(requests=1)}
    two = {"a": ClientCounts(running=3, requests=5, queue_seconds=0.5)}
    merged = merge_clients([one, two])
    assert merged["a"] == ClientCounts(1, 3, 7, queue_seconds=0.5)
    assert merged[OTHER].requests == 1
    assert one["a"].requests == 2, "the parts stay as they are"
