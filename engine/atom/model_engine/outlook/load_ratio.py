"""LoadRatio: how much of its time a server would compute, if its steps were full. Pure.

Latencies say little until a queue builds up, and then much at once. The work that arrives grows
with the load, so replicas can be chosen by it: prompt tokens and answers of the last half minute,
in the seconds that they take in steps with as many rows as fit. Used by Outlook.
"""

from __future__ import annotations

from atom.model_engine.outlook.step_costs import Costs
from atom.model_engine.wire.outlook_body import StepTotals
from atom.model_engine.wire.step_window import StepWindow

_WINDOW_SECONDS, _LEAST_SECONDS = 30.0, 5.0


class LoadRatio:
    """Times in monotonic seconds."""

    def __init__(self) -> None:
        self._window = StepWindow(_WINDOW_SECONDS)

    def ratio(self, now: float, totals: StepTotals, costs: Costs, full_rows: float) -> float:
        """Note the totals so far, and return the share; 0 before some seconds are known. full_rows:
        of a full step."""
        seconds, steps = self._window.note(now, totals)
        if seconds < _LEAST_SECONDS:
            return 0.0
        answer = costs.seconds(full_rows, 0.0) / full_rows
        return (answer * steps.rows + costs.token * steps.prompt_tokens) / seconds
