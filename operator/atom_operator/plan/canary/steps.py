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
    CanaryPods,
    CanarySeen,
    CanaryState,
    CanaryStep,
    CanaryWait,
    FailingChecks,
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
_HELD_WORDS, _UNDO_WORDS = (f"spec.canary.decision is {each}" for each in ("Hold", "Undo"))
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
    wait = state.wait
    words = "; ".join(filter(None, (wait.words, left_over(asked, decided))))
    waits = wait.since is not None and now - wait.since >= PATIENCE
    wait = replace(wait, words=words, stalled=wait.stalled or (waits and not seen.pods.load))
    state = replace(state, wait=wait, decided=decided)
    if state.phase in _OVER:
        began = before.since if before is not None and before.phase is state.phase else now
        kept = before.pods.beside if before is not None else None
        pods = replace(state.pods, digest=seen.pods.digest, beside=kept)
        return replace(state, since=began, pods=pods)
    ready, beside = seen.pods.ready, seen.others.can_serve
    count = pods_asked(asked, state.step, beside)
    if asked.replicas is None and (seen.others.roll or state.phase is CanaryPhase.PROMOTING):
        count = pods_that_stay(count, ready)
    return replace(state, pods=CanaryPods(seen.pods.digest, count, ready, beside))


def needs_others(state: CanaryState) -> bool:
    """Return whether the replicas beside the canary may have to take its requests back."""
    return bool(state.weight) or state.phase is CanaryPhase.PROMOTING


def replicas_kept(state: CanaryState, now: datetime | None) -> int | None:
    """Return the replicas below which the others must not fall, so that they can serve all requests
    when the canary takes none any more; None once it has taken none for a while."""
    if needs_others(state):
        return state.pods.beside
    none_since = state.since if state.phase in _OVER else state.wait.since
    if now is None or none_since is None:
        return None
    return state.pods.beside if now - none_since < _KEPT_AFTERWARDS else None


def _next_state(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None, now: datetime
) -> CanaryState:
    before = _of_this_change(asked, seen, before)
    step = min(before.step, len(asked.steps) - 1)
    before = replace(before, step=step, wait=replace(before.wait, stalled=False))
    if asked.decision == "Undo":
        return CanaryState(asked.change, CanaryPhase.UNDONE, wait=CanaryWait(_UNDO_WORDS))
    if asked.decision == "Promote":
        return promote(seen, before, _carried(asked, seen, step))
    if before.fault is not None:
        return before
    if seen.hopeless is not None:
        return _undone(before, seen.hopeless)
    if seen.blocked is not None:
        restarted = _restarted(before, seen.blocked, now)
        return replace(restarted, wait=replace(restarted.wait, stalled=True))
    if not seen.pods.serve:
        words = seen.words or "its pods are being started"
        return _restarted(before, words, now)
    if not seen.known:
        return _restarted(before, _UNKNOWN_WORDS, now)
    judged = _judged(asked, seen, before, now)
    if judged.fault is not None:
        return judged
    weight = _carried(asked, seen, step)
    judged = replace(judged, weight=weight)
    lacks = "" if weight == asked.steps[step].weight else _lacks(asked, seen, step)
    if asked.decision == "Hold":
        words = "; ".join(filter(None, (_HELD_WORDS, lacks)))
        return replace(judged, phase=CanaryPhase.HELD, since=None, wait=CanaryWait(words))
    if lacks:
        lost = seen.pods.ready < before.pods.ready
        return _bounded(replace(judged, since=None if lost else judged.since), lacks, now)
    return _stepped(asked, seen, judged, now)


def _of_this_change(
    asked: CanaryAsked, seen: CanarySeen, before: CanaryState | None
) -> CanaryState:
    """Return the state so far; another change of which no pod notices anything keeps it."""
    if before is not None and before.change == asked.change:
        return before
    if before is not None and before.phase in TAKES_PART:
        known = before.pods.digest
        if known is not None and known == seen.pods.digest:
            return replace(before, change=asked.change)
    return CanaryState(asked.change, CanaryPhase.STARTING)


def promote(seen: CanarySeen, before: CanaryState, weight: int) -> CanaryState:
    """Promote: the other pods take the canary's change while it keeps its share `weight`. A
    promoted canary stays promoted, though it is removed a moment later than its share."""
    is_over = before.phase is CanaryPhase.PROMOTED or not seen.exists
    if is_over or (before.phase is CanaryPhase.PROMOTING and seen.others.rolled_out):
        wait = CanaryWait("every pod is what the canary was")
        return CanaryState(before.change, CanaryPhase.PROMOTED, wait=wait)
    wait, failed = CanaryWait("the other pods become what it is"), seen.others.promotion_failed
    if failed is not None:
        words = f"the other pods could not become what it is: {failed}"
        wait = CanaryWait(words, stalled=True)
    weight = weight if seen.pods.serve and seen.known else 0
    return CanaryState(before.change, CanaryPhase.PROMOTING, before.step, weight, wait=wait)


def _carried(asked: CanaryAsked, seen: CanarySeen, step: int) -> int:
    """Return the share of a step as far as the pods that serve can carry it."""
    weight = asked.steps[step].weight
    return carried_share(asked, weight, seen.pods.ready, seen.others.can_serve)


def _lacks(asked: CanaryAsked, seen: CanarySeen, step: int) -> str:
    """Return the message that the serving pods cannot carry the share of a step."""
    weight, needed = asked.steps[step].weight, pods_asked(asked, step, seen.others.can_serve)
    words = f"{weight}% of the requests are the work of {needed} pods, and {seen.pods.ready} serve"
    return f"{words}: {seen.words}" if seen.words else words


def _bounded(before: CanaryState, words: str, now: datetime) -> CanaryState:
    """Bound the share to the pods' capacity. The time of a step begins with its whole share, and
    continues while more replicas beside it require more pods of it."""
    waited = before.wait.since if before.phase in _TAKE_REQUESTS else None
    phase = before.phase if before.phase is CanaryPhase.WAITING else CanaryPhase.STEPPING
    return replace(before, phase=phase, wait=CanaryWait(words, waited or now))


def seconds_to_look(asked: CanaryAsked, state: CanaryState, now: datetime) -> float | None:
    """Return the seconds until the canary may progress without an event; None if it will not."""
    if state.phase in _OVER:
        left = _KEPT_AFTERWARDS - (now - state.since) if state.since else timedelta()
        return (
            left.total_seconds() if left > timedelta() and state.pods.beside is not None else None
        )
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
    waiting_since = before.wait.since if before.phase is CanaryPhase.STEPPING else None
    before = replace(before, since=before.since or now)
    doubt = _doubt(seen)
    end = _end(step, before)
    over = end is None or now >= end
    if over and before.step == last:
        words = "; ".join(filter(None, ("it waits to be promoted", doubt)))
        return replace(before, phase=CanaryPhase.WAITING, wait=CanaryWait(words))
    wait = CanaryWait(doubt)
    if over and not doubt:
        after = before.step + 1
        weight = _carried(asked, seen, after)
        since = now if weight == asked.steps[after].weight else None
        before = replace(before, step=after, weight=weight, since=since)
    elif over:
        wait = CanaryWait(doubt, waiting_since or now)
    return replace(before, phase=CanaryPhase.STEPPING, wait=wait)


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
        return replace(before, failing=FailingChecks()) if judgement.passes else before
    interval = timedelta(seconds=analysis.interval_seconds)
    if before.failing.last is not None and now - before.failing.last < interval:
        return before
    failing = FailingChecks(before.failing.count + 1, now)
    if failing.count < analysis.failures:
        return replace(before, failing=failing)
    return _undone(before, f"{judgement.words}, {failing.count} times in a row")


def _undone(before: CanaryState, fault: str) -> CanaryState:
    phase, wait = CanaryPhase.UNDONE, CanaryWait(fault)
    return CanaryState(before.change, phase, before.step, fault=fault, wait=wait)


def _restarted(before: CanaryState, words: str, now: datetime) -> CanaryState:
    """Return the state without requests; the step begins again once the canary serves."""
    waited = before.wait.since if before.phase is CanaryPhase.STARTING else None
    wait = CanaryWait(words, waited or now)
    return replace(before, phase=CanaryPhase.STARTING, weight=0, since=None, wait=wait)
