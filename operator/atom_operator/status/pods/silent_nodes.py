"""Which nodes under our pods report no more: why replicas are missing. Pure.

The controller of nodes ends such pods minutes later and makes others; until the node is back or is
deleted the old ones stay, and until others serve their node is the cause. Called by the roll-up.
"""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import DeploymentState, Observed
from atom_operator.pods.silent_node import silence_of
from atom_operator.status.conditions import Verdict

_NAMED_NODES = 3


def silent_verdict(observed: Observed, deployment: DeploymentState) -> Verdict | None:
    """Judge Degraded if replicas are missing and pods of ours are on silent nodes."""
    if not observed.silent or deployment.ready >= deployment.desired:
        return None
    nodes = sorted({pod.node for pod in observed.silent})
    told = [silence_of(name, observed.silent) for name in nodes[:_NAMED_NODES]]
    rest = len(nodes) - len(told)
    more = f" (and {rest} more nodes)" if rest else ""
    message = f"{'; '.join(told)}{more}; whether they run is unknown until it is back or deleted"
    return Verdict(ConditionType.DEGRADED, "True", Reason.NODE_SILENT, message)
