"""Reconciling and Stalled, as kstatus defines them for Flux and others that wait for objects. Pure.

At every time one of four things holds: the object is Ready; it is Suspended; the operator or
Kubernetes continues by itself (Reconciling); or the user has to act (Stalled). kstatus
(sigs.k8s.io/cli-utils, pkg/kstatus) expects the two only if they are True, and so they are set.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.constants import ConditionType, Reason
from atom_operator.status.conditions import Verdict


def kstatus_verdicts(
    ready: Verdict, progressing: Verdict, suspended: Verdict | None
) -> Iterator[Verdict]:
    """Yield Reconciling or Stalled, whichever is True, with the words of Ready."""
    if _is_stalled(ready, progressing):
        yield _of_ready(ConditionType.STALLED, ready)
    elif ready.status != "True" and (suspended is None or suspended.status != "True"):
        yield _of_ready(ConditionType.RECONCILING, ready)


def _is_stalled(ready: Verdict, progressing: Verdict) -> bool:
    """Return whether nothing changes before the user acts. A complete rollout recovers a replica
    that is away, but not replicas that a client removed."""
    if ready.status == "True":
        return False
    if progressing.reason is Reason.COMPLETE:
        return ready.reason is Reason.SCALED_TO_ZERO
    return progressing.status == "False"


def _of_ready(kind: ConditionType, ready: Verdict) -> Verdict:
    return Verdict(kind, "True", ready.reason, ready.message)
