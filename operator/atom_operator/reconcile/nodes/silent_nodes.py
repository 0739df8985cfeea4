"""Pods that start or end on nodes which no longer report, detected by their nodes.

If a pod served, the controller of nodes marks it as not ready, so that the pod alone shows it
(pods/silent_node.py). A pod that was not ready yet seems to be starting, for the five minutes until
it is given up, and to be ending from then on: its node is asked, if nodes can be read. A fault that
was reported before its node fell silent is as old as the kubelet's last report, and excuses
nothing: the pod cannot start until the node is back. Called by the reconciler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.domain import Observed, PodState, SilentPod
from atom_operator.domain.nodes import Nodes
from atom_operator.plan.eligibility import ready_condition
from atom_operator.pods.pod_state import time_of


async def with_silent_nodes(fleet: FleetReader, observed: Observed) -> Observed:
    """Add the pods that have a node, are to end or not ready, and whose node no longer reports."""
    known = {pod.name for pod in observed.silent}
    begins = [(pod.name, pod.placement.node) for pod in observed.pods if _begins(pod)]
    ends = [(pod.name, pod.node) for pod in observed.leaving]
    asked = [(name, node) for name, node in (*begins, *ends) if node and name not in known]
    nodes = await fleet.nodes(Age.KNOWN) if asked else None
    if nodes is None:
        return observed
    silent = nodes.once("silent", lambda: _silent(nodes))
    found = tuple(SilentPod(name, node, silent[node]) for name, node in asked if node in silent)
    return replace(observed, silent=(*observed.silent, *found)) if found else observed


def _begins(pod: PodState) -> bool:
    return pod.placement.scheduled and not pod.ready


def _silent(nodes: Nodes) -> Mapping[str, datetime | None]:
    """Return the nodes whose kubelet is not heard of, and since when each."""
    return {
        str(node["metadata"]["name"]): time_of(ready.get("lastTransitionTime"))
        for node in nodes
        if (ready := ready_condition(node)).get("status") == "Unknown"
    }
