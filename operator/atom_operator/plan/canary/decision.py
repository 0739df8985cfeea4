"""Matches a decision of spec.canary to the change that it is about. Pure.

Promote and Undo are acts: each is about one change. The field stays afterwards, because `kubectl
apply`, Argo CD and Flux keep a field that another client added, so a decision about an earlier
change may accompany a later one and must have no effect. Hold is a state and holds every change.
"""

from __future__ import annotations

from dataclasses import replace

from atom_operator.domain.canary import CanaryAsked, CanaryPhase, CanaryState, Decided

_ACTS = ("Promote", "Undo")
# Phases that only a decision leads to; a status of an older operator has no further ones.
_DECIDED = {
    "Promote": (CanaryPhase.PROMOTING, CanaryPhase.PROMOTED),
    "Undo": (CanaryPhase.UNDONE,),
}


def decided_of(asked: CanaryAsked, before: CanaryState | None) -> Decided | None:
    """Return the act that the spec asks for and its change: the one that spec.canary.decisionFor
    names, else the one that was there when the decision was first seen."""
    decision, named = asked.decision, asked.decision_for
    if decision is None or decision not in _ACTS:
        return None
    known = _known(decision, before)
    is_kept = known is not None and known.decision == decision
    # A name that a later decision by hand has left behind refers to nothing any more.
    is_old = known is not None and named == known.named and not (is_kept and named == known.change)
    if named is not None and not is_old:
        return Decided(decision, named, named)
    if known is not None and is_kept:
        return known
    return Decided(decision, asked.change, named)


def in_force(asked: CanaryAsked, decided: Decided | None) -> CanaryAsked:
    """Return the request without an act that was decided about another change."""
    if decided is None or decided.change == asked.change:
        return asked
    return replace(asked, decision=None)


def left_over(asked: CanaryAsked, decided: Decided | None) -> str:
    """Return the message that a decision has no effect; empty for an effective one."""
    if decided is None or decided.change == asked.change:
        return ""
    verb = decided.decision.lower()
    return (
        f"spec.canary.decision {decided.decision} was made for another change ({decided.change})"
        f" and does nothing; decide about this one with kubectl atom {verb}, or take decision and"
        " decisionFor away"
    )


def _known(decision: str, before: CanaryState | None) -> Decided | None:
    if before is None:
        return None
    if before.decided is None and before.phase in _DECIDED[decision] and before.fault is None:
        return Decided(decision, before.change)
    return before.decided
