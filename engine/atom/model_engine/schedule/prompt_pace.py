"""PromptPace: when prompts may begin, and how many of their tokens the next step computes.

One value for both policies: with `mixed` the time of a step bounds the tokens of prompts
(step_time.py); with `prefill_first` prompts may wait to be computed together (prompt_delay.py).
Knows no queue and no blocks. Used by Scheduler, which tells it of each step.
"""

from __future__ import annotations

from collections.abc import Iterable

from atom.config import SchedulerConfig
from atom.model_engine.schedule.prompt_delay import PromptDelay
from atom.model_engine.schedule.step_time import Beside, StepTime
from atom.model_engine.sequence import Sequence


class PromptPace:
    """Times in monotonic seconds."""

    def __init__(self, config: SchedulerConfig) -> None:
        mixed = config.policy == "mixed"
        # `mixed` computes prompts beside decodes: there is nothing to gather them for.
        self._step_time = StepTime(config.max_step_seconds if mixed else 0.0)
        self._delay = PromptDelay(0.0 if mixed else config.delay_factor)

    @property
    def seconds_a_token(self) -> float:
        """Return the measured time of a prompt token in a step; 0 if none was measured."""
        return self._step_time.seconds_a_token

    def may_begin(self, now: float, waiting: Iterable[Sequence], *, others_run: bool) -> bool:
        """Return whether another of the `waiting` may begin."""
        return self._delay.passed(now, waiting, others_run=others_run)

    def prompt_budget(self, budget: int, now: float, beside: Beside) -> int:
        """Return how many of `budget` tokens prompts may take in the next step."""
        return self._step_time.prompt_budget(budget, now, beside)

    def began(self, now: float, prompt_tokens: int) -> None:
        """Record a scheduled step."""
        self._step_time.began(now, prompt_tokens)
        if prompt_tokens:
            self._delay.began(now)

    def ended(self, *, has_prompts: bool) -> None:
        """Record that the tokens of the oldest such step are known."""
        self._step_time.ended()
        if has_prompts:
            self._delay.ended()

    def pause(self, now: float) -> None:
        """Learn from the last step, before the engine waits."""
        self._step_time.pause(now)
