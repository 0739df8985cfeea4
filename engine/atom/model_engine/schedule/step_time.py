"""StepTime: bounds the prompt tokens of a step by what steps with prompts have taken.

A step computes prompts beside answers, and each answer gets its next token when the whole step is
done (Sarathi-Serve, https://arxiv.org/abs/2403.02310). A token budget bounds what a step computes,
not how long: the same 16,384 tokens are 0.5 s on one device and 15 s on another. So the budget
follows the seconds that a prompt token has taken, as a moving average: longer contexts cost more.
Without answers the bound holds too, since a request that comes waits for the step under way, but
never at the price of throughput.

If several clients are there, one client's prompts lengthen the steps of another's answers, and a
prompt that comes waits for the step under way. Such a step may take no longer than a few steps
without prompts, which adds at most a part of that number to the time of the prompts.
Used by PromptPace.
"""

from __future__ import annotations

from enum import Enum

from atom.model_engine.schedule.step_clock import StepClock

LEAST_TOKENS = 64  # of prompts in a step, however slow: each step has fixed costs
LEAST_ALONE_TOKENS = 1024  # of prompts without answers: fewer would cost throughput
FIRST_TOKENS = 512  # beside answers, while nothing is known of the device's speed
# A step of several clients, in steps without prompts: first tokens come after two or three of them.
SHARED_STEPS = 6.0
LEAST_SHARED_SECONDS = 0.01  # less than that is not noticed, and shorter steps cost more
_NEW_SHARE = 0.25  # of the newest step in the average
_MOST_GROWTH = 4.0  # of one step over the average: a pause of the machine is no speed


class Beside(Enum):
    """Kinds of work beside the prompts of a step."""

    NOTHING = "nothing"
    OWN_ANSWERS = "answers of the one client"
    OTHERS_ANSWERS = "answers while several clients are there"

    @staticmethod
    def of(answers: bool, shared: bool) -> Beside:
        """Return the kind. answers: some are under way; shared: several clients have requests."""
        if not answers:
            return Beside.NOTHING
        return Beside.OTHERS_ANSWERS if shared else Beside.OWN_ANSWERS


class StepTime:
    """Times in monotonic seconds."""

    def __init__(self, most_seconds: float) -> None:
        """most_seconds: of a step beside answers; 0 for no bound."""
        self._most_seconds = most_seconds
        self._clock: StepClock[int] = StepClock()  # of the prompt tokens of steps
        self._seconds_a_token = 0.0
        self._seconds_without = 0.0  # of a step without prompts

    @property
    def seconds_a_token(self) -> float:
        """Return the average time of a prompt token in a step; 0 before the first
        measurement."""
        return self._seconds_a_token

    def began(self, now: float, prompt_tokens: int) -> None:
        """Record a scheduled step."""
        if self._most_seconds:
            self._clock.began(now, prompt_tokens)

    def ended(self) -> None:
        """Record that the tokens of the oldest such step are known; it ends when the next one is
        scheduled, or with `pause`."""
        if self._most_seconds:
            self._clock.ended()

    def pause(self, now: float) -> None:
        """Learn from the last step: the time until the next one belongs to neither."""
        self._learn(now)

    def prompt_budget(self, budget: int, now: float, beside: Beside) -> int:
        """Return how many of `budget` tokens prompts may take in the next step."""
        if not self._most_seconds:
            return budget
        self._learn(now)
        alone = beside is Beside.NOTHING
        if not self._seconds_a_token:  # the first step measures it
            return budget if alone else min(budget, FIRST_TOKENS)
        affordable = int(self._bound(beside) / self._seconds_a_token)
        return min(budget, max(LEAST_ALONE_TOKENS if alone else LEAST_TOKENS, affordable))

    def _bound(self, beside: Beside) -> float:
        """Return the most seconds of the next step."""
        if beside is not Beside.OTHERS_ANSWERS or not self._seconds_without:
            return self._most_seconds
        shared = max(LEAST_SHARED_SECONDS, SHARED_STEPS * self._seconds_without)
        return min(self._most_seconds, shared)

    def _learn(self, now: float) -> None:
        for tokens, seconds in self._clock.turn(now):
            if tokens >= LEAST_TOKENS:
                self._seconds_a_token = _average(self._seconds_a_token, seconds / tokens)
            elif not tokens:
                self._seconds_without = _average(self._seconds_without, seconds)


def _average(average: float, measured: float) -> float:
    """Move an average; 0 before the first measurement."""
    if not average:
        return measured
    bounded = min(measured, _MOST_GROWTH * average)
    return average + _NEW_SHARE * (bounded - average)
