"""Degraded by failing pods: each different fault is reported, since one need not explain the other.
Pure; called by the roll-up.

An old pod on a sick device and a new one whose image is missing are two things to mend.
"""

from __future__ import annotations

from collections.abc import Sequence

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import DeploymentState, Observed, PodState
from atom_operator.status.conditions import Verdict

_TOLD = 3  # faults; a condition's message is bounded


def failing_verdict(observed: Observed, deployment: DeploymentState) -> Verdict | None:
    """Report a pod for each fault, those of the newest revision first; None if no pod fails."""
    faults: dict[str, list[PodState]] = {}
    for pod in sorted(observed.pods, key=lambda pod: pod.revision != deployment.revision):
        if pod.health.problem and not pod.ready:
            faults.setdefault(pod.health.problem, []).append(pod)
    if not faults:
        return None
    told = list(faults.values())
    rest = sum(map(len, told[_TOLD:]))
    message = "; ".join(map(_fault, told[:_TOLD])) + (f"; {rest} more pods fail" if rest else "")
    return Verdict(ConditionType.DEGRADED, "True", Reason.POD_FAILING, message)


def _fault(pods: Sequence[PodState]) -> str:
    """Describe the common fault of pods that fail alike."""
    more = f" (and {len(pods) - 1} more pods)" if len(pods) > 1 else ""
    return f"pod {pods[0].name}: {pods[0].health.problem}{more}"
