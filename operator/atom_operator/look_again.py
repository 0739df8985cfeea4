"""When to look again at what no event announces. Pure; called at the end of a reconcile."""

from __future__ import annotations

from datetime import datetime

from atom_operator.constants import Reason
from atom_operator.decision import Decision, unschedulable
from atom_operator.domain import ApplyReport, EngineView, Observed

# Nothing announces that a quota was raised, a conflicting object deleted, a ConfigMap of the user's
# created or a node's device freed.
_LOOK_AGAIN_SECONDS = 30.0
# A loading engine tells how far it is only when it is asked.
_LOADING_SECONDS = 10.0
# An engine that serves and yet says nothing to us may never do so (a network policy): asked ever
# more rarely, after as long again as it has been silent.
_MOST_SILENT_SECONDS = 900.0


def look_again(
    decision: Decision,
    report: ApplyReport,
    observed: Observed,
    engines: EngineView,
    now: datetime,
) -> float | None:
    """Seconds until the next look; None where events will tell of everything."""
    if any(not pod.ready and pod.address for pod in observed.pods):
        return _LOADING_SECONDS
    if decision.waiting is not None:
        return _LOOK_AGAIN_SECONDS if decision.waiting.failed else _LOADING_SECONDS
    waits_for_config = (
        decision.plan is not None and decision.plan.capacity.reason is Reason.MODEL_CONFIG_NOT_FOUND
    )
    stuck = unschedulable(observed) is not None
    waits = bool(report.refused) or waits_for_config or stuck
    if waits or _depends_on_others(decision, report):
        return _LOOK_AGAIN_SECONDS
    return _ask_again(observed, now) if engines.measured is None else None


def _ask_again(observed: Observed, now: datetime) -> float | None:
    """When to ask engines that serve for what they have not told yet; None where none serves."""
    serving = [pod for pod in observed.pods if pod.ready and pod.address]
    if not serving:
        return None
    times = [(now - pod.ready_since).total_seconds() for pod in serving if pod.ready_since]
    return min(max(_LOOK_AGAIN_SECONDS, min(times, default=0.0)), _MOST_SILENT_SECONDS)


def _depends_on_others(decision: Decision, report: ApplyReport) -> bool:
    """Free devices bound an autoscaler, and nobody announces a CRD that somebody installs."""
    if any(problem.reason is Reason.API_NOT_SERVED for problem in decision.problems):
        return True
    asked = decision.plan.integrations if decision.plan else None
    unfinished = asked is not None and bool(asked.autoscaling or asked.missing)
    return unfinished or bool(report.refused_optional)
