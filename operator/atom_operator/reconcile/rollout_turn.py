"""Whether a rollout may begin now: inside its window, and when it is this one's turn. Pure.

Only a change of serving pods waits: the first pods, the steps after a failure or within a rollout,
and urgent rollouts begin at once. Called by the Decider.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.domain import Observed, PodRevision, RevisionInForce, RolloutWait
from atom_operator.domain.origin import Default, Origin, subject
from atom_operator.reconcile.rollout_window import DAYS, RolloutWindow, opens_at
from atom_operator.validation.rollout import find_zone

Begin = Callable[[tuple[Default, ...]], RolloutWait | None]


@dataclass(frozen=True, slots=True)
class Turns:
    """Hold the functions that ask for one AtomDeployment's turn to begin a rollout, given the
    defaults whose change alone leads to it; each returns why it waits."""

    take: Callable[[tuple[Default, ...]], str | None] = lambda _defaults: None
    take_urgent: Callable[[tuple[Default, ...]], str | None] = lambda _defaults: None


ALONE = Turns()


@dataclass(frozen=True, slots=True)
class AskedRollout:
    """Hold the rollout settings, and the function that permits the start; is_seen: an operator has
    reported on this very spec."""

    spec: RolloutSpec
    begin: Begin
    is_seen: bool


def begins(asked: RolloutSpec, observed: Observed, turns: Turns) -> Begin:
    """Build the function that permits a rollout's start: the window first, which takes no turn."""

    def begin(defaults: tuple[Default, ...]) -> RolloutWait | None:
        closed = window_wait(asked, observed.at)
        if closed is not None:
            words = f"{subject(defaults)}{closed.words}"
            return replace(closed, words=words, defaults=defaults)
        waits = (turns.take_urgent if asked.urgent else turns.take)(defaults)
        return RolloutWait(waits, in_row=True, defaults=defaults) if waits is not None else None

    return begin


def window_wait(asked: RolloutSpec, now: datetime | None) -> RolloutWait | None:
    """Return the wait for the window's opening; None inside it, and without one."""
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
    """Return whether pods that serve are to be replaced by `wanted`, and no rollout is under way:
    all that serve are of the revision in force, whether or not every replica has ever had a place.
    Pods whose workload was deleted serve too, until the garbage collector ends them: if they were
    orphaned, the new workload adopts them."""
    running, there = observed.deployment, observed.pods_in_force
    if there is None:
        return False
    rollback = running.notes.rollback if running is not None else None
    failed = rollback.failed if rollback is not None else None
    return {*observed.serving} == {there.name} and wanted.name not in (there.name, failed)


def with_origin(asked: RevisionInForce, observed: Observed, *, spec_seen: bool) -> RevisionInForce:
    """Return the revision with the defaults that it follows: the changed ones, if nothing else has
    changed. `spec_seen`: for workloads without a stored origin."""
    wanted, plan = asked.pods, asked.plan
    running, now = observed.deployment, plan.spec.origin
    if running is None or now is None:
        return asked
    before = running.notes.origin
    failed = running.notes.rollback.failed if running.notes.rollback else None
    if before is not None and wanted.name == (failed or running.revision):
        return _of(asked, replace(now, follows=before.follows))
    if wanted.name == running.revision or (before.own != now.own if before else not spec_seen):
        return asked
    known = before.defaults if before is not None else ()
    follows = tuple(each for each in now.defaults if each not in known)
    return _of(asked, replace(now, follows=follows))


def _of(asked: RevisionInForce, origin: Origin) -> RevisionInForce:
    plan = asked.plan
    return replace(asked, plan=replace(plan, spec=replace(plan.spec, origin=origin)))
