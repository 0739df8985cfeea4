"""StepTime: bounds the prompt tokens of a step by what steps with prompts have taken.

A step computes prompts beside answers, and each answer gets its next token when the whole step is
done (Sarathi-Serve, https://arxiv.org/abs/2403.02310). A token budget bounds what a step computes,
not how long: the same 16,384 tokens are 0.5 s on one device and 15 s on another. So the budget
beside answers follows the seconds that a prompt token has taken, as a moving average: longer
contexts cost more. Without answers a step takes the whole budget. Used by Scheduler.
"""

from __future__ import annotations

from collections import deque

LEAST_TOKENS = 64  # of prompts in a step, however slow: each step has costs of its own
_NEW_SHARE = 0.25  # of the newest step in the average
_MOST_GROWTH = 4.0  # of one step over the average: a pause of the machine is no speed


class StepTime:
    """Times in monotonic seconds."""

    def __init__(self, most_seconds: float) -> None:
        """most_seconds: of a step beside answers; 0 for no bound."""
        self._most_seconds = most_seconds
        self._computing: deque[tuple[float, int]] = deque()  # since when, prompt tokens
        self._known: list[tuple[float, int]] = []  # steps whose tokens came since the last one
        self._known_at = 0.0
        self._seconds_a_token = 0.0

    def began(self, now: float, prompt_tokens: int) -> None:
        """A step was scheduled."""
        if self._most_seconds:
            self._computing.append((now, prompt_tokens))

    def ended(self) -> None:
        """The tokens of the oldest such step are known; it ends when the next one is scheduled."""
        if self._most_seconds:
            self._known.append(self._computing.popleft())

    def paused(self) -> None:
        """No request is left: the time until the next step is none of the last one's."""
        self._known.clear()

    def prompt_budget(self, budget: int, now: float, *, beside_answers: bool) -> int:
        """Return how many of `budget` tokens prompts may take in the next step."""
        if not self._most_seconds:
            return budget
        self._learn(now)
        if not beside_answers or not self._seconds_a_token:
            return budget
        affordable = int(self._most_seconds / self._seconds_a_token)
        return min(budget, max(LEAST_TOKENS, affordable))

    def _learn(self, now: float) -> None:
        for begun, tokens in self._known:
            seconds = now - max(begun, self._known_at)
            if tokens >= LEAST_TOKENS and seconds > 0:
                self._average(seconds / tokens)
            self._known_at = now
        self._known.clear()

    def _average(self, measured: float) -> None:
        average = self._seconds_a_token
        if not average:
            self._seconds_a_token = measured
            return
        bounded = min(measured, _MOST_GROWTH * average)
        self._seconds_a_token = average + _NEW_SHARE * (bounded - average)
