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
from atom_operator.plan.canary.size import carried_share, pods_asked, pods_that_stay

# Of a wait that no person ends: a Gateway's controller, engines that do not answer.
PATIENCE = timedelta(minutes=10)
# Nothing announces that pods which served do not come back.
_STARTING_SECONDS = 60.0
# An autoscaler sees the requests that come back from one that is undone a little later.
_KEPT_AFTERWARDS = timedelta(minutes=5)
_UNKNOWN_WORDS = "the Gateway's controller has not taken up the route with its Service yet"
_HELD_WORDS = "spec.canary.decision is Hold"
# It has pods.
TAKES_PART = (CanaryPhase.STARTING, CanaryPhase.STEPPING, CanaryPhase.HELD, CanaryPhase.WAITING)
_TAKE_REQUESTS = (CanaryPhase.STEPPING, CanaryPhase.WAITING)
_OVER = (CanaryPhase.UNDONE, CanaryPhase.PROMOTED)


def next_state(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None, now: datetime
) -> CanaryState:
    """Return the state of a canary that the spec asks for."""
    decided = decided_of(asked, before)
    state = _next_state(in_force(asked, decided), seen, before, now)
    words = "; ".join(filter(None, (state.words, left_over(asked, decided))))
    waits = state.waiting_since is not None and now - state.waiting_since >= PATIENCE
    stalled = state.stalled or (waits and not seen.loads)
    state = replace(state, words=words, stalled=stalled, pods=seen.pods, decided=decided)
    if state.phase in _OVER:
        began = before.since if before is not None and before.phase is state.phase else now
        kept = before.beside if before is not None else None
        return replace(state, since=began, beside=kept)
    pods = pods_asked(asked, state.step, seen.beside)
    if asked.replicas is None and (seen.others_roll or state.phase is CanaryPhase.PROMOTING):
        pods = pods_that_stay(pods, seen.ready)
    return replace(state, replicas=pods, ready=seen.ready, beside=seen.beside)


def needs_others(state: CanaryState) -> bool:
    """Return whether the replicas beside the canary may have to take its requests back."""
    return bool(state.weight) or state.phase is CanaryPhase.PROMOTING


def replicas_kept(state: CanaryState, now: datetime | None) -> int | None:
    """Return the replicas below which the others must not fall, so that they can serve all requests
    when the canary takes none any more; None once it has taken none for a while."""
    if needs_others(state):
        return state.beside
    none_since = state.since if state.phase in _OVER else state.waiting_since
    if now is None or none_since is None:
        return None
    return state.beside if now - none_since < _KEPT_AFTERWARDS else None


def _next_state(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None, now: datetime
) -> CanaryState:
    before = _of_this_change(asked, seen, before)
    before = replace(before, step=min(before.step, len(asked.steps) - 1), stalled=False)
    if asked.decision == "Undo":
        return CanaryState(asked.change, CanaryPhase.UNDONE, words="spec.canary.decision is Undo")
    if asked.decision == "Promote":
        weight = asked.steps[before.step].weight
        return promote(seen, before, carried_share(asked, weight, seen.ready, seen.beside))
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
    weight = carried_share(asked, step.weight, seen.ready, seen.beside)
    judged = replace(judged, weight=weight)
    lacks = "" if weight == step.weight else _lacks(asked, seen, before.step)
    if asked.decision == "Hold":
        words = "; ".join(filter(None, (_HELD_WORDS, lacks)))
        held = replace(judged, phase=CanaryPhase.HELD, since=None, words=words)
        return replace(held, waiting_since=None)
    if lacks:
        lost = seen.ready < before.ready
        return _bounded(replace(judged, since=None if lost else judged.since), lacks, now)
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
    """Promote: the other pods take the canary's change while it keeps its share `weight`. A
    promoted canary stays promoted, though it is removed a moment later than its share."""
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


def _lacks(asked: CanaryAsked, seen: CanarySeen, step: int) -> str:
    """Return the message that the serving pods cannot carry the share of a step."""
    weight, needed = asked.steps[step].weight, pods_asked(asked, step, seen.beside)
    words = f"{weight}% of the requests are the work of {needed} pods, and {seen.ready} serve"
    return f"{words}: {seen.words}" if seen.words else words


def _bounded(before: CanaryState, words: str, now: datetime) -> CanaryState:
    """Bound the share to the pods' capacity. The time of a step begins with its whole share, and
    continues while more replicas beside it require more pods of it."""
    waited = before.waiting_since if before.phase in _TAKE_REQUESTS else None
    phase = before.phase if before.phase is CanaryPhase.WAITING else CanaryPhase.STEPPING
    return replace(before, phase=phase, waiting_since=waited or now, words=words)


def seconds_to_look(asked: CanaryAsked, state: CanaryState, now: datetime) -> float | None:
    """Return the seconds until the canary may progress without an event; None if it will not."""
    if state.phase in _OVER:
        left = _KEPT_AFTERWARDS - (now - state.since) if state.since else timedelta()
        return left.total_seconds() if left > timedelta() and state.beside is not None else None
    if state.phase not in TAKES_PART:
        return None
    if state.phase is CanaryPhase.STARTING:
        return _STARTING_SECONDS
    step_weight = asked.steps[min(state.step, len(asked.steps) - 1)].weight
    times: list[float] = [_STARTING_SECONDS] if state.weight < step_weight else []
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
        pods = carried_share(asked, after.weight, seen.ready, seen.beside)
        since = now if pods == after.weight else None
        before = replace(before, step=before.step + 1, weight=pods, since=since)
    elif over:
        before = replace(before, waiting_since=waiting_since or now)
    return replace(before, phase=CanaryPhase.STEPPING, words=doubt)


def _end(step: CanaryStep, state: CanaryState) -> datetime | None:
    """Return when the step's time is over; None if it has no time."""
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
    """Count failing looks, one per interval, and undo a canary that fails too often."""
    judgement, analysis = seen.judgement, asked.analysis
    if judgement is None or analysis is None or not before.weight:
        return before  # its earlier share was for another change
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
