"""Decides which model sleeps next and which wakes up, if several share a device. Pure: values in,
values out.

Sleeping models with requests get their turns in the order of their oldest requests. The model that
makes room is the least recently used one that is not pinned and computes nothing. A model that has
just woken up stays awake for a while, so that two models with alternating requests do not spend the
time on waking up. No model starves: once the first in the queue has waited for so long, models that
compute get no further requests, finish theirs and sleep. A model that has not finished in time
sleeps all the same: its requests are preempted, and the model asks for its next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROUNDING = 1e-9  # shares are sums of decimal fractions


@dataclass(frozen=True, slots=True)
class SwapRule:
    """Bound how long models wait for each other. most_wait: seconds for which awake models may take
    more requests while another model is requested. least_awake: seconds for which a model stays
    that has woken up, unless another has waited for the longer one. most_drain: seconds for which a
    model that has to make room may compute after that, before its requests are preempted."""

    most_wait: float = 10.0
    least_awake: float = 1.0
    most_drain: float = 10.0


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as the policy sees it. share: of the device's memory while it is awake; running: its
    requests that compute, or that are preempted while it sleeps; waiting_since: since when the
    oldest request waits that is held or preempted, None without any; used: when one of its requests
    came or ended last; woke: when it woke up last."""

    name: str
    share: float
    pinned: bool
    awake: bool
    running: int
    waiting_since: float | None
    used: float
    woke: float


@dataclass(frozen=True, slots=True)
class Decision:
    """State the next change, at most one of sleep and wake. closed: models that are awake and take
    no further requests. again_at: when time alone changes the decision; None if only a request
    can."""

    sleep: str | None = None
    wake: str | None = None
    closed: frozenset[str] = frozenset()
    again_at: float | None = None


def decide(models: Sequence[ModelView], capacity: float, rule: SwapRule, now: float) -> Decision:
    """Decide which model sleeps or wakes up now. capacity: the sum of shares that may be awake."""
    asked = [each for each in models if not each.awake and each.waiting_since is not None]
    if not asked:
        return Decision()
    first = min(asked, key=_waiting_since)
    awake = [each for each in models if each.awake]
    missing = first.share - (capacity - sum(each.share for each in awake)) - ROUNDING
    if missing <= 0:
        return Decision(wake=first.name)
    movable = [each for each in awake if not each.pinned]
    idle = sorted((each for each in movable if not each.running), key=lambda each: each.used)
    rested = [each for each in idle if now >= each.woke + rule.least_awake]
    leaving = _enough(rested, missing)
    if leaving:
        return Decision(sleep=leaving[0].name)
    overdue_at = _waiting_since(first) + rule.most_wait
    if now < overdue_at:
        rest_ends = (each.woke + rule.least_awake for each in idle if each not in rested)
        return Decision(again_at=min([overdue_at, *rest_ends]))
    busy = sorted((each for each in movable if each.running), key=lambda each: each.woke)
    leaving = _enough([*idle, *busy], missing)
    closed = frozenset(each.name for each in leaving)
    # Each that wakes up has its whole bound, however long the first in the queue waits by then.
    ends = {
        each.name: max(overdue_at, each.woke + rule.least_awake) + rule.most_drain
        for each in leaving
    }
    done = (each.name for each in leaving if not each.running or now >= ends[each.name])
    ready = next(done, None)
    return Decision(ready, None, closed, None if ready else min(ends.values(), default=None))


def _enough(models: Iterable[ModelView], missing: float) -> list[ModelView]:
    """Return the first models whose shares add up to `missing`; empty if all of them do not."""
    taken: list[ModelView] = []
    for each in models:
        taken.append(each)
        missing -= each.share
        if missing <= 0:
            return taken
    return []


def _waiting_since(model: ModelView) -> float:
    assert model.waiting_since is not None, "only models that are asked for are compared"
    return model.waiting_since
