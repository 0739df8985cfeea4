"""DevicesHealthy: the complaints about a pod's devices, and the pod's fate. Pure.

It is never a cause of Degraded: a pod may serve for long on a device that is reported sick, and one
that does not serve reports its own fault. Called by the roll-up.
"""

from __future__ import annotations

from atom_operator.constants import ConditionType
from atom_operator.domain import DeviceFindings
from atom_operator.status.conditions import Verdict

_KIND = ConditionType.DEVICES_HEALTHY


def devices_verdict(findings: DeviceFindings) -> Verdict | None:
    """Name the pod that is moved next; Unknown if it is open whose device is sick, and None while
    no device of a pod is called sick."""
    if not findings.sick:
        return None
    first, *others = findings.sick
    more = f" (and {len(others)} more pods)" if others else ""
    message = (
        f"pod {first.name} on node {first.node}: {first.words}, since {findings.since}{more}; "
        f"{findings.outcome}"
    )
    return Verdict(_KIND, "Unknown" if first.in_doubt else "False", findings.reason, message)
