"""Kueue's verdict on a pod that its scheduling gate holds back. Pure.

Kueue makes a Workload for each pod of a queue and reports there why it is not admitted: the pod
itself has only the gate. Called by observe, which reads the Workloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from atom_operator.domain import Manifest, PodState

_GATES = "kueue.x-k8s.io/"
_OWNER_UID = "kueue.x-k8s.io/job-uid"
# In the order of Kueue's own decisions; a Workload that got past one of them waits for the next.
_DECISIONS = ("QuotaReserved", "Admitted")


def waits_for_quota(pod: Manifest) -> bool:
    """Return whether a pod is held back by a gate of Kueue's."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(gate["name"].startswith(_GATES) for gate in gates)


def workload_labels(pod: Manifest) -> dict[str, str]:
    """Return the label by which the Workload of a pod is found."""
    return {_OWNER_UID: str(pod["metadata"].get("uid"))}


def with_quota_words(state: PodState, workloads: Iterable[Manifest]) -> PodState:
    """Return the pod's state with its Workload's message about the quota, if there is one yet."""
    for workload in workloads:
        found = (workload.get("status") or {}).get("conditions") or ()
        told = {item["type"]: item for item in found if item.get("status") == "False"}
        for decision in _DECISIONS:
            words = str(told.get(decision, {}).get("message") or "").strip()
            if words:
                before = state.placement
                message = f"{before.unschedulable_message}: {words}"
                return replace(state, placement=replace(before, unschedulable_message=message))
    return state
