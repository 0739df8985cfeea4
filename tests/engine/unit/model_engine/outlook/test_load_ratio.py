"""The load of a server grows with the requests that come, and is 1 if its steps are full."""

from __future__ import annotations

import pytest

from atom.model_engine.outlook.load_ratio import LoadRatio
from atom.model_engine.outlook.step_costs import Costs
from atom.model_engine.wire.outlook_body import StepTotals

COSTS = Costs(0.01, 1e-4, 1e-5)
ROWS = 50.0


def loaded(seconds: float, rows: float, tokens: float) -> float:
    """The ratio with so many rows and prompt tokens a second, after so many seconds."""
    load, found = LoadRatio(), 0.0
    for tick in range(int(seconds * 2) + 1):
        now = tick / 2
        totals = StepTotals(rows=int(rows * now), prompt_tokens=int(tokens * now))
        found = load.ratio(now, totals, COSTS, ROWS)
    return found


def test_full_steps_all_the_time_are_a_load_of_one() -> None:
    steps = 1.0 / COSTS.seconds(ROWS, 0)
    assert loaded(40, ROWS * steps, 0) == pytest.approx(1.0, rel=0.02)
    assert loaded(40, 0, 1 / COSTS.token) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("times", [0.1, 0.5, 0.9])
def test_the_load_grows_with_the_requests(times: float) -> None:
    whole = loaded(40, 1000, 20_000)
    assert loaded(40, 1000 * times, 20_000 * times) == pytest.approx(times * whole, rel=0.02)


def test_a_load_is_that_of_the_last_half_minute() -> None:
    load = LoadRatio()
    for tick in range(200):
        now = tick / 2
        tokens = 0 if now < 50 else 20_000 * (now - 50)
        found = load.ratio(now, StepTotals(prompt_tokens=int(tokens)), COSTS, ROWS)
    assert found == pytest.approx(0.2, rel=0.05)


def test_the_first_seconds_say_nothing() -> None:
    assert loaded(3, 5000, 0) == 0.0
