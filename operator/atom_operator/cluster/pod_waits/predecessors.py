"""Detects that a group's pod is one of many of its name, because its node refused them all.

A StatefulSet deletes a pod that has ended within moments and makes the next, which looks as if it
had just begun; only Events keep the kubelet's messages. A Deployment's ended pods stay, and carry
them. Called by observe, for pods that are not ready.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import POD, Manifest, PodState
from atom_operator.pods.events import newest_rejection
from atom_operator.pods.pod_state import has_begun

# Between the end of one pod and the making of the next, by clocks that differ.
_AT_ONCE = timedelta(minutes=1)


async def with_predecessors_end(port: ClusterPort, pod: Manifest, state: PodState) -> PodState:
    """Return the state of a pod, with its predecessor's end if nothing else explains its wait."""
    if (
        state.role is None
        or state.ready
        or state.health.problem
        or state.placement.unschedulable_message
    ):
        return state
    if has_begun(pod):
        return state  # its node takes it now
    metadata = pod["metadata"]
    events = await port.list_events(metadata["namespace"], POD.kind, metadata["name"])
    found = newest_rejection(events, but_of=str(metadata.get("uid")))
    if found is None or (state.created_at and found.at < state.created_at - _AT_ONCE):
        return state
    problem = f"the pod of this name before it ended: {found.words}"
    return replace(state, health=replace(state.health, problem=problem))
