"""Steps of a canary: its next state from the request, the observation, and its state so far.

Pure. It takes requests only while it serves. A step ends when its time is over and the analysis
passes; after the last it waits for a person, since the operator writes no spec. It is undone by a
person, or when its pods cannot start or the analysis fails so often in a row; the fault is kept
until the change is another, so that the canary does not flap. One that waits for longer than any
cause should take is stalled: it reports so, keeps its pods and share, and continues when the cause
is gone.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from atom_operator.domain.canary import (
    CanaryAsked,
    CanaryPhase,
    CanarySeen,
    CanaryState,
    CanaryStep,
)
from atom_operator.plan.canary.decision import decided_of, in_force, left_over

# Of a wait that nobody decides about: a Gateway's controller, engines that do not answer.
PATIENCE = timedelta(minutes=10)
# Nothing announces that pods which served do not come back.
_STARTING_SECONDS = 60.0
_UNKNOWN_WORDS = "the Gateway's controller has not taken up the route with its Service yet"
_HELD_WORDS = "spec.canary.decision is Hold"
# It has pods of its own.
TAKES_PART = (CanaryPhase.STARTING, CanaryPhase.STEPPING, CanaryPhase.HELD, CanaryPhase.WAITING)


def next_state(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None, now: datetime
) -> CanaryState:
    """The state of a canary that the spec asks for."""
    decided = decided_of(asked, before)
    state = _next_state(in_force(asked, decided), seen, before, now)
    words = "; ".join(filter(None, (state.words, left_over(asked, decided))))
    waits = state.waiting_since is not None and now - state.waiting_since >= PATIENCE
    stalled = state.stalled or (waits and not seen.loads)
    return replace(state, words=words, stalled=stalled, pods=seen.pods, decided=decided)


def _next_state(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None, now: datetime
) -> CanaryState:
    before = _of_this_change(asked, seen, before)
    before = replace(before, step=min(before.step, len(asked.steps) - 1), stalled=False)
    if asked.decision == "Undo":
        return CanaryState(asked.change, CanaryPhase.UNDONE, words="spec.canary.decision is Undo")
    if asked.decision == "Promote":
        return promote(seen, before, asked.steps[before.step].weight)
    if before.fault is not None:
        return before
    if seen.hopeless is not None:
        return _undone(before, seen.hopeless)
    step = asked.steps[before.step]
    if seen.blocked is not None:
        return replace(_restarted(before, seen.blocked, now), stalled=True)
    if not seen.serves:
        words = seen.words or "its pods are being started"
        return _restarted(before, words, now)
    if not seen.known:
        return _restarted(before, _UNKNOWN_WORDS, now)
    judged = _judged(asked, seen, before, now)
    if judged.fault is not None:
        return judged
    judged = replace(judged, weight=step.weight)
    if asked.decision == "Hold":
        held = replace(judged, phase=CanaryPhase.HELD, since=None, words=_HELD_WORDS)
        return replace(held, waiting_since=None)
    return _stepped(asked, seen, judged, now)


def _of_this_change(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None
) -> CanaryState:
    """Return the state so far; another change of which no pod notices anything keeps it."""
    if before is not None and before.change == asked.change:
        return before
    same_pods = before is not None and before.pods is not None and before.pods == seen.pods
    if before is not None and same_pods and before.phase in TAKES_PART:
        return replace(before, change=asked.change)
    return CanaryState(asked.change, CanaryPhase.STARTING)


def promote(seen: CanarySeen, before: CanaryState, weight: int) -> CanaryState:
    """The other pods become what the canary is, which keeps its share `weight` until they are. One
    that was promoted stays so, though it goes a moment later than its share."""
    is_over = before.phase is CanaryPhase.PROMOTED or not seen.exists
    if is_over or (before.phase is CanaryPhase.PROMOTING and seen.rolled_out):
        words = "every pod is what the canary was"
        return CanaryState(before.change, CanaryPhase.PROMOTED, words=words)
    words = "the other pods become what it is"
    if seen.promotion_failed is not None:
        words = f"the other pods could not become what it is: {seen.promotion_failed}"
    weight = weight if seen.serves and seen.known else 0
    failed = seen.promotion_failed is not None
    phase, step = CanaryPhase.PROMOTING, before.step
    return CanaryState(before.change, phase, step, weight, words=words, stalled=failed)


def seconds_to_look(asked: CanaryAsked, state: CanaryState, now: datetime) -> float | None:
    """Count the seconds until the canary may go on without an event; None where it will not."""
    if state.phase not in TAKES_PART:
        return None
    if state.phase is CanaryPhase.STARTING:
        return _STARTING_SECONDS
    times: list[float] = []
    if asked.analysis is not None and state.weight:
        times.append(asked.analysis.interval_seconds)
    step = asked.steps[min(state.step, len(asked.steps) - 1)]
    if state.phase is CanaryPhase.STEPPING and (end := _end(step, state)) is not None and end > now:
        times.append((end - now).total_seconds())
    return min(times, default=None)


def _stepped(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState, now: datetime
) -> CanaryState:
    step, last = asked.steps[before.step], len(asked.steps) - 1
    waiting_since = before.waiting_since if before.phase is CanaryPhase.STEPPING else None
    before = replace(before, since=before.since or now, waiting_since=None)
    doubt = _doubt(seen)
    end = _end(step, before)
    over = end is None or now >= end
    if over and before.step == last:
        words = "; ".join(filter(None, ("it waits to be promoted", doubt)))
        return replace(before, phase=CanaryPhase.WAITING, words=words)
    if over and not doubt:
        after = asked.steps[before.step + 1]
        before = replace(before, step=before.step + 1, weight=after.weight, since=now)
    elif over:
        before = replace(before, waiting_since=waiting_since or now)
    return replace(before, phase=CanaryPhase.STEPPING, words=doubt)


def _end(step: CanaryStep, state: CanaryState) -> datetime | None:
    """Return when the step has been tried for long enough; None where it has no time."""
    if step.seconds is None or state.since is None:
        return None
    return state.since + timedelta(seconds=step.seconds)


def _doubt(seen: CanarySeen) -> str:
    """Return why the canary cannot take the next step yet, though its analysis has not failed."""
    judgement = seen.judgement
    return "" if judgement is None or judgement.passes else judgement.words


def _judged(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState, now: datetime
) -> CanaryState:
    """Count looks that fail, one in an interval, and undo what has failed too often."""
    judgement, analysis = seen.judgement, asked.analysis
    if judgement is None or analysis is None or not before.weight:
        return before  # what it took before, it took as another
    if judgement.passes is not False:
        return replace(before, failures=0, failed_at=None) if judgement.passes else before
    interval = timedelta(seconds=analysis.interval_seconds)
    if before.failed_at is not None and now - before.failed_at < interval:
        return before
    failed = replace(before, failures=before.failures + 1, failed_at=now)
    if failed.failures < analysis.failures:
        return failed
    return _undone(failed, f"{judgement.words}, {failed.failures} times in a row")


def _undone(before: CanaryState, fault: str) -> CanaryState:
    return CanaryState(before.change, CanaryPhase.UNDONE, before.step, fault=fault, words=fault)


def _restarted(before: CanaryState, words: str, now: datetime) -> CanaryState:
    """Return the state without requests; the step begins again once the canary serves."""
    since = before.waiting_since if before.phase is CanaryPhase.STARTING else None
    return replace(
        before,
        phase=CanaryPhase.STARTING,
        weight=0,
        since=None,
        words=words,
        waiting_since=since or now,
    )
