"""What pods cost puts them in the order of their requests, and is written when that changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_operator.domain import EngineLoad
from atom_operator.pods.deletion_cost import costs_to_write, deletion_cost

_LOADS = st.builds(EngineLoad, st.integers(0, 2**16), st.integers(0, 2**40))
_KNOWN = st.integers(0, 3000)


def test_one_open_request_costs_more_than_any_cache() -> None:
    assert deletion_cost(EngineLoad(1, 0)) > deletion_cost(EngineLoad(0, 2**62))


@pytest.mark.parametrize(("less", "more"), [((0, 0), (0, 100)), ((3, 9), (4, 0)), ((2, 5), (2, 9))])
def test_more_requests_cost_more_and_then_more_cached_tokens(
    less: tuple[int, int], more: tuple[int, int]
) -> None:
    assert deletion_cost(EngineLoad(*less)) < deletion_cost(EngineLoad(*more))


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(_KNOWN, _LOADS), min_size=2))
def test_after_the_write_the_order_is_that_of_the_loads_and_nothing_is_left_to_write(
    pods: dict[str, tuple[int, EngineLoad]],
) -> None:
    known = {name: cost for name, (cost, _) in pods.items()}
    loads = {name: load for name, (_, load) in pods.items()}
    written = {**known, **costs_to_write(known, loads)}
    for one in loads:
        for other in loads:
            if deletion_cost(loads[one]) < deletion_cost(loads[other]):
                assert written[one] < written[other]
    assert costs_to_write(written, loads) == {}


def test_a_load_that_moves_within_its_order_is_not_written() -> None:
    loads = {"a": EngineLoad(1, 0), "b": EngineLoad(20, 0)}
    known = costs_to_write({"a": 0, "b": 0}, loads)
    assert costs_to_write(known, {"a": EngineLoad(5, 0), "b": EngineLoad(300, 0)}) == {}


def test_a_pod_that_says_nothing_keeps_what_it_has() -> None:
    assert set(
        costs_to_write({"a": 0, "b": 0, "mute": 7}, {"a": EngineLoad(1, 0), "b": EngineLoad(0, 0)})
    ) == {"a"}
