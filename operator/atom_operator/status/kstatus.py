"""Reconciling and Stalled, as kstatus defines them for Flux and others that wait for objects. Pure.

At every time one of four things holds: the object is Ready; it is Suspended; the operator or
Kubernetes goes on by itself (Reconciling); or the user has to act (Stalled). kstatus
(sigs.k8s.io/cli-utils, pkg/kstatus) takes the two for absent where they are False.
"""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.status.conditions import Verdict


def kstatus_verdicts(
    ready: Verdict, progressing: Verdict, suspended: Verdict
) -> tuple[Verdict, Verdict]:
    """Return Reconciling and Stalled; the one that is True has the words of Ready."""
    stalled = _is_stalled(ready, progressing)
    reconciling = "True" not in (ready.status, suspended.status) and not stalled
    return (
        _of_ready(ConditionType.RECONCILING, ready)
        if reconciling
        else Verdict(
            ConditionType.RECONCILING, "False", Reason.NOT_RECONCILING, "nothing is under way"
        ),
        _of_ready(ConditionType.STALLED, ready)
        if stalled
        else Verdict(ConditionType.STALLED, "False", Reason.NOT_STALLED, "nobody has to act"),
    )


def _is_stalled(ready: Verdict, progressing: Verdict) -> bool:
    """Return whether nothing changes before the user acts. A rollout that is complete goes on where
    a replica is away, but not where a client took all replicas away."""
    if ready.status == "True":
        return False
    if progressing.reason is Reason.COMPLETE:
        return ready.reason is Reason.SCALED_TO_ZERO
    return progressing.status == "False"


def _of_ready(kind: ConditionType, ready: Verdict) -> Verdict:
    return Verdict(kind, "True", ready.reason, ready.message)
