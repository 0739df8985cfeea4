"""status.canary and CanaryProgressing: how far a canary is, and why it does not continue. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import ATOM_DEPLOYMENT, ApplyReport, ChildKey, ConditionStatus
from atom_operator.domain.canary import (
    Canary,
    CanaryPhase,
    CanaryPods,
    CanaryState,
    CanaryWait,
    Decided,
    FailingChecks,
)
from atom_operator.pods.pod_state import time_of
from atom_operator.status.conditions import Verdict

_KIND = ConditionType.CANARY_PROGRESSING
_VERDICTS: Mapping[CanaryPhase, tuple[ConditionStatus, Reason]] = {
    CanaryPhase.STARTING: ("True", Reason.CANARY_STARTING),
    CanaryPhase.STEPPING: ("True", Reason.CANARY_STEPPING),
    CanaryPhase.HELD: ("False", Reason.CANARY_HELD),
    CanaryPhase.WAITING: ("False", Reason.AWAITING_PROMOTION),
    CanaryPhase.PROMOTING: ("True", Reason.PROMOTING),
    CanaryPhase.PROMOTED: ("False", Reason.PROMOTED),
    CanaryPhase.UNDONE: ("False", Reason.CANARY_UNDONE),
}
_TRY_AGAIN = "it has no pods; another spec.canary.change is tried again"
_END_IT = (
    "write the change into the spec and remove spec.canary (kubectl atom promote NAME --write)"
)


def canary_status(canary: Canary) -> dict[str, Any]:
    """Build status.canary, from which the next pass continues."""
    state = canary.state
    status: dict[str, Any] = {
        "name": canary.name,
        "change": state.change,
        "phase": state.phase.value,
        "step": state.step + 1,
        "weight": state.weight,
    }
    if state.since is not None:
        status["since"] = _written(state.since)
    if state.failing.count:
        status["failures"] = state.failing.count
    if state.failing.last is not None:
        status["failedAt"] = _written(state.failing.last)
    if state.fault is not None:
        status["fault"] = state.fault
    if state.wait.since is not None:
        status["waitingSince"] = _written(state.wait.since)
    pods = state.pods
    if pods.digest is not None:
        status["pods"] = pods.digest
    if pods.asked is not None:
        status |= {"replicas": pods.asked, "readyReplicas": pods.ready}
    if pods.beside is not None:
        status["beside"] = pods.beside
    if state.decided is not None:
        status["decided"] = _written_decision(state.decided)
    return status


def state_of(status: Mapping[str, Any]) -> CanaryState | None:
    """Parse the status that `canary_status` wrote; None if it is absent or unreadable."""
    found = status.get("canary")
    if not isinstance(found, Mapping):
        return None
    try:
        fault = found.get("fault")
        return CanaryState(
            change=str(found["change"]),
            phase=CanaryPhase(found["phase"]),
            step=max(0, int(found["step"]) - 1),
            weight=int(found["weight"]),
            since=time_of(found.get("since")),
            failing=FailingChecks(int(found.get("failures") or 0), time_of(found.get("failedAt"))),
            fault=None if fault is None else str(fault),
            wait=CanaryWait(
                "" if fault is None else str(fault), time_of(found.get("waitingSince"))
            ),
            pods=_pods(found),
            decided=_decided(found.get("decided")),
        )
    except (KeyError, ValueError, TypeError):
        return None


def _pods(found: Mapping[str, Any]) -> CanaryPods:
    return CanaryPods(
        digest=None if found.get("pods") is None else str(found["pods"]),
        asked=_number(found.get("replicas")),
        ready=int(found.get("readyReplicas") or 0),
        beside=_number(found.get("beside")),
    )


def _number(found: Any) -> int | None:
    return None if found is None else int(found)


def _decided(found: Any) -> Decided | None:
    if not isinstance(found, Mapping):
        return None
    named = found.get("named")
    named = None if named is None else str(named)
    return Decided(str(found["decision"]), str(found["change"]), named)


def _written_decision(decided: Decided) -> dict[str, str]:
    named = {} if decided.named is None else {"named": decided.named}
    return {"decision": decided.decision, "change": decided.change, **named}


def canary_progressing(canary: Canary | None, report: ApplyReport) -> Verdict | None:
    """Judge: True while the canary progresses by itself; False while it waits, and at its end. None
    without a canary. `report`: the writes of its AtomDeployment."""
    if canary is None:
        return None
    status, reason = _VERDICTS[canary.state.phase]
    for refusal in (*report.refused, *report.refused_optional):
        if refusal.child == ChildKey(ATOM_DEPLOYMENT, canary.name):
            words = f"{canary.name} cannot be made; {refusal.message}"
            return Verdict(_KIND, "False", Reason.CANARY_STALLED, words)
    if canary.state.wait.stalled:
        status, reason = "False", Reason.CANARY_STALLED
    return Verdict(_KIND, status, reason, _message(canary))


def _message(canary: Canary) -> str:
    """Describe the canary's state, and after a semicolon the reason of its wait."""
    state = canary.state
    said = f"; {state.wait.words}" if state.wait.words else ""
    match state.phase:
        case CanaryPhase.UNDONE:
            return f"{canary.name} is undone{said}; {_TRY_AGAIN}"
        case CanaryPhase.PROMOTED:
            return f"{canary.name} is promoted{said}; {_END_IT}"
        case CanaryPhase.STARTING:
            return f"{canary.name} takes no requests yet{said}"
    step = f"step {state.step + 1} of {canary.steps}, " if canary.steps > 1 else ""
    return f"{step}{canary.name} takes {state.weight}% of the requests{said}"


def _written(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
