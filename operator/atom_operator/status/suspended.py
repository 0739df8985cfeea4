"""Suspended: whether spec.suspend has taken every pod away. Pure.

False until the last pod has ended, so that who waits for it finds the accelerators free.
"""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import Observed
from atom_operator.status.conditions import Verdict

_KIND = ConditionType.SUSPENDED
_BACK = "spec.suspend: false brings the replicas back"


def suspended_verdict(observed: Observed, *, asked: bool) -> Verdict | None:
    """Report the progress of the suspension; None unless spec.suspend asks for it (`asked`)."""
    if not asked:
        return None
    left = len(observed.pods) + len(observed.leaving)
    if left:
        message = f"pods that finish their requests and end: {left}; {_BACK}"
        return Verdict(_KIND, "False", Reason.SUSPENDING, message)
    return Verdict(_KIND, "True", Reason.SUSPENDED, f"no pod runs; {_BACK}")
