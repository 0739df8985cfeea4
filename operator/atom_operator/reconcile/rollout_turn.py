"""Whether a rollout may begin now: inside its window, and when it is this one's turn. Pure.

What waits is only the change of pods that serve: the first pods, what follows after a failure or
within a rollout, and what the spec calls urgent begin at once. Called by the Decider.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.domain import Observed, Plan, PodRevision, Target
from atom_operator.domain.origin import Default
from atom_operator.reconcile.last_accepted import pods_in_force, target_in_force
from atom_operator.reconcile.rollout_window import DAYS, RolloutWindow, opens_at
from atom_operator.validation.rollout import find_zone

_AT_ONCE = "spec.rollout.urgent begins at once"


@dataclass(frozen=True, slots=True)
class RolloutWait:
    """Say why a rollout waits, and until when where that is known."""

    words: str
    until: datetime | None = None
    in_row: bool = False  # for the turn of others to end
    is_refused: bool = False  # by admission of pods, which urgency does not change
    defaults: tuple[Default, ...] = ()  # whose change alone waits; the spec's own is served

    @property
    def told(self) -> str:
        """Return the words with what would begin at once."""
        return self.words if self.is_refused else f"{self.words}; {_AT_ONCE}"


Begin = Callable[[tuple[Default, ...]], RolloutWait | None]


@dataclass(frozen=True, slots=True)
class Turns:
    """Hold what asks for the turn of one AtomDeployment among all to begin a rollout, by the
    defaults whose change alone leads to it; each answers why it waits."""

    take: Callable[[tuple[Default, ...]], str | None] = lambda _defaults: None
    take_urgent: Callable[[tuple[Default, ...]], str | None] = lambda _defaults: None


ALONE = Turns()


@dataclass(frozen=True, slots=True)
class AskedRollout:
    """Hold what is asked of a rollout, and what says whether it may begin; is_seen: an operator has
    reported on this very spec."""

    spec: RolloutSpec
    begin: Begin
    is_seen: bool


def begins(asked: RolloutSpec, observed: Observed, turns: Turns) -> Begin:
    """Make what says whether a rollout may begin: the window first, which takes no turn."""

    def begin(defaults: tuple[Default, ...]) -> RolloutWait | None:
        closed = window_wait(asked, observed.at)
        if closed is not None:
            return replace(closed, defaults=defaults)
        words = (turns.take_urgent if asked.urgent else turns.take)(defaults)
        return RolloutWait(words, in_row=True, defaults=defaults) if words is not None else None

    return begin


def window_wait(asked: RolloutSpec, now: datetime | None) -> RolloutWait | None:
    """Return what a rollout waits for outside its window; None inside, and without one."""
    if asked.window is None or asked.urgent or now is None:
        return None
    window = window_of(asked)
    opens = opens_at(window, now) if window is not None else None
    if opens is None:
        return None
    words = f"spec.rollout.window opens at {opens:%Y-%m-%dT%H:%M}Z"
    return RolloutWait(words, opens)


def window_of(asked: RolloutSpec) -> RolloutWindow | None:
    """Return the window as values; None without one, or of an unknown zone."""
    window = asked.window
    zone = find_zone(window.time_zone or "UTC") if window is not None else None
    if window is None or zone is None:
        return None
    days = frozenset(DAYS.index(day) for day in window.days or DAYS)
    start = time.fromisoformat(window.start)
    return RolloutWindow(days, start, timedelta(minutes=window.minutes), zone)


def is_due(observed: Observed, wanted: PodRevision) -> bool:
    """Return whether pods that serve, all of one revision, are to be replaced by `wanted`."""
    running, recorded = observed.deployment, observed.last_ready
    if running is None or recorded is None or not running.ready:
        return False
    failed = running.rollback.failed if running.rollback else None
    return recorded.name == running.revision and wanted.name not in (running.revision, failed)


def with_origin(plan: Plan, observed: Observed, wanted: PodRevision, *, spec_seen: bool) -> Plan:
    """The plan with the defaults that `wanted` follows: those that have changed, where nothing
    else has. `spec_seen` tells of workloads that keep no origin."""
    running, now = observed.deployment, plan.origin
    if running is None or now is None:
        return plan
    before = running.origin
    failed = running.rollback.failed if running.rollback else None
    if before is not None and wanted.name == (failed or running.revision):
        return replace(plan, origin=replace(now, follows=before.follows))
    if wanted.name == running.revision or (before.own != now.own if before else not spec_seen):
        return plan
    known = before.defaults if before is not None else ()
    follows = tuple(each for each in now.defaults if each not in known)
    return replace(plan, origin=replace(now, follows=follows))


def as_before(
    plan: Plan, observed: Observed, *, may_roll_back: bool, engine_words: str
) -> tuple[Plan, Target] | None:
    """The plan with the pods that run, whose workload goes on saying what they were made for."""
    running, pods = observed.deployment, pods_in_force(observed)
    if running is None or pods is None:
        return None
    same = replace(
        plan,
        spec_digest=running.spec_digest or plan.spec_digest,
        startup_budget_seconds=running.startup_budget_seconds or plan.startup_budget_seconds,
        default_image=running.default_image,
        origin=running.origin,
    )
    target = target_in_force(pods, observed, may_roll_back=may_roll_back, engine_words=engine_words)
    return same, target
