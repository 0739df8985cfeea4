"""Placements are complete, balance what they are made for, and move no more than they must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.eplb_config import EPLBConfig, eplb_config
from atom.errors import ConfigError
from atom.model_ops.expert_parallel.eplb import balance, first_placement, rebalanced, sources


@st.composite
def _cases(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Loads of experts, ranks that divide their slots, and redundant slots."""
    ranks = draw(st.sampled_from([2, 4, 8]))
    slots = draw(st.integers(1, 6))
    redundant = draw(st.integers(0, min(ranks - 1, slots)))
    experts = ranks * slots - redundant
    loads = draw(st.lists(st.integers(0, 1000), min_size=experts, max_size=experts))
    return np.array(loads, dtype=np.int64), ranks, redundant


@given(_cases())
def test_every_expert_has_a_slot_and_no_rank_two_of_one_it_was_given(
    case: tuple[np.ndarray, int, int],
) -> None:
    load, ranks, redundant = case
    old = first_placement(len(load), redundant)
    new = rebalanced(load, old, ranks)
    assert len(new) == len(old)
    assert set(new) == set(range(len(load)))
    assert balance(load, new, ranks) >= balance(load, old, ranks)
    if new != old:
        for held in np.reshape(new, (ranks, -1)).tolist():
            assert len(set(held)) == len(held)
    assert rebalanced(load, new, ranks) == new
    moved = sources(old, new, ranks)
    assert [old[moved.get(slot, slot)] for slot in range(len(old))] == list(new)


def test_loaded_neighbours_are_parted() -> None:
    load = np.array([100, 100, 1, 1])
    old = first_placement(4, 0)
    assert balance(load, old, 2) == pytest.approx(101 / 200)
    new = rebalanced(load, old, 2)
    assert balance(load, new, 2) == 1.0
    assert len(sources(old, new, 2)) == 2


def test_the_most_loaded_expert_gets_the_second_copy() -> None:
    load = np.array([90, 30, 30, 30, 30, 30])
    new = rebalanced(load, first_placement(6, 2), 2)
    assert sorted(new).count(0) == 2
    assert balance(load, new, 2) == 1.0


def test_a_load_that_is_even_enough_moves_nothing() -> None:
    old = first_placement(4, 0)
    assert rebalanced(np.array([100, 100, 99, 100]), old, 2) is old


def test_what_the_flags_say() -> None:
    assert eplb_config(False, None) is None
    assert eplb_config(True, None) == EPLBConfig()
    text = '{"window_size": 5, "step_interval": 9, "num_redundant_experts": 2}'
    asked = EPLBConfig(window_steps=5, interval_steps=9, redundant=2)
    assert eplb_config(True, text) == asked


@pytest.mark.parametrize(
    ("enabled", "text", "said"),
    [
        (False, "{}", "add that"),
        (True, "{", "use JSON such as"),
        (True, '{"windows": 1}', "windows"),
        (True, '{"window_size": 9, "step_interval": 5}', "at most step_interval, 5"),
        (True, '{"num_redundant_experts": -1}', "0 or more"),
    ],
)
def test_what_is_no_such_configuration_is_refused(enabled: bool, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        eplb_config(enabled, text)
