"""Step costs are learned from a server's own steps, whatever it serves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.model_engine.outlook.step_costs import Costs, Noted, StepCosts
from tests.support.random_search import examples


def taught(steps: list[tuple[int, int]], true: Costs, *, pauses: int = 0) -> StepCosts:
    """Costs that have seen steps of (rows, prompt tokens), of which some took a second more."""
    costs, now = StepCosts(), 1.0
    for number, (rows, tokens) in enumerate(steps):
        costs.began(now, Noted(rows, 100 * rows, tokens, int(tokens > 0)))
        now += true.seconds(rows, tokens) + (1.0 if number < pauses and not tokens else 0.0)
        costs.ended()
        costs.learn(now)
    return costs


def mixed_steps(seed: int, count: int = 200) -> list[tuple[int, int]]:
    draw = random.Random(seed)
    return [
        (draw.randint(1, 64), draw.choice((0, 0, 0, draw.randint(64, 4096)))) for _ in range(count)
    ]


@settings(max_examples=examples(12), deadline=None)
@given(
    step=st.floats(1e-4, 0.05),
    row=st.floats(1e-6, 1e-4),
    token=st.floats(1e-7, 1e-4),
    seed=st.integers(0, 1000),
)
def test_costs_are_found_again(step: float, row: float, token: float, seed: int) -> None:
    true = Costs(step, row, token)
    found = taught(mixed_steps(seed), true).costs()
    assert found is not None
    for rows, tokens in ((1, 0), (32, 0), (64, 0), (1, 2048), (32, 512)):
        assert found.seconds(rows, tokens) == pytest.approx(true.seconds(rows, tokens), rel=0.05)


def test_a_pause_of_the_machine_is_no_cost() -> None:
    true = Costs(0.005, 1e-5, 1e-5)
    found = taught(mixed_steps(1), true, pauses=6).costs()
    assert found is not None
    assert found.seconds(16, 0) == pytest.approx(true.seconds(16, 0), rel=0.1)


def test_equal_batches_and_prompts_alone_give_no_negative_cost() -> None:
    true = Costs(0.01, 1e-5, 2e-5)
    for steps in ([(8, 0)] * 50, [(0, 512)] * 50, [(8, 0)] * 20 + [(0, 512)] * 20):
        found = taught(steps, true).costs()
        assert found is not None
        assert min(found.step, found.row, found.token) >= 0.0
        rows, tokens = steps[0]
        assert found.seconds(rows, tokens) == pytest.approx(true.seconds(rows, tokens), rel=0.02)


def test_a_few_steps_teach_nothing_and_old_ones_are_forgotten() -> None:
    slow, fast = Costs(0.1, 0.0, 0.0), Costs(0.01, 0.0, 0.0)
    assert taught([(4, 0)] * 7, slow).costs() is None
    costs, now = taught([(4, 0)] * 20, slow), 100.0
    for _ in range(200):
        costs.began(now, Noted(4, 400, 0, 0))
        costs.ended()
        now += 0.01
        costs.learn(now)
    found = costs.costs()
    assert found is not None
    assert found.seconds(4, 0) == pytest.approx(fast.seconds(4, 0), rel=0.05)


def test_steps_are_added_up_for_a_table() -> None:
    costs = taught([(4, 0), (4, 100), (0, 50)], Costs(0.01, 0.0, 0.0))
    assert costs.timed_steps_total == 3
    assert (costs.rows_total, costs.prompt_tokens_total, costs.prompt_steps_total) == (8, 150, 2)
    assert costs.context_tokens_total == 800
    assert costs.seconds_total == pytest.approx(0.03)


def test_the_time_without_requests_belongs_to_no_step() -> None:
    costs = StepCosts()
    costs.began(1.0, Noted(1, 10, 0, 0))
    costs.ended()
    costs.learn(1.25)  # the engine has nothing to do
    costs.began(900.0, Noted(1, 10, 0, 0))
    costs.ended()
    costs.learn(900.5)
    assert costs.seconds_total == pytest.approx(0.75)
    assert costs.timed_steps_total == 2
