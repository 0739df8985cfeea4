"""Sets pod deletion costs, so that ReplicaSets end the right pods first in a scale-down.

If the operator lowers the number of replicas, it asks the engines just before; if an autoscaler
does, at every look. A scale-down does not depend on the costs: one that cannot be read or written
is left out. Groups of pods are ended by number, whatever they cost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from atom_operator.cluster.engines import MetricsReader
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.observe import is_autoscalers
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import DEPLOYMENT, POD, ChildKey, Manifest, ObjectKey, Observed
from atom_operator.pods.deletion_cost import costs_to_write
from atom_operator.pods.pod_marks import marked

_logger = logging.getLogger(__name__)
_MOST_ASKED = 32  # further replicas keep their costs


async def tell_deletion_costs(
    port: ClusterPort,
    metrics: MetricsReader,
    key: ObjectKey,
    desired: Mapping[ChildKey, Manifest],
    observed: Observed,
) -> None:
    """Write deletion costs to the pods whose order has changed."""
    serving = [pod for pod in observed.pods if pod.ready and pod.address][:_MOST_ASKED]
    if len(serving) < 2 or not _may_lose_pods(key, desired, observed):
        return
    found = zip(serving, await metrics.of(serving), strict=True)
    loads = {pod.name: told.load for pod, told in found if told.load is not None}
    known = {pod.name: pod.marks.deletion_cost for pod in serving}
    pods = {pod.name: pod for pod in serving}
    for name, cost in costs_to_write(known, loads).items():
        try:
            marks = replace(pods[name].marks, deletion_cost=cost)
            await port.apply(POD, marked(key.namespace, replace(pods[name], marks=marks)))
        except ClusterError as error:  # it has gone, or a chart of before has no right to it
            _logger.info("deletion cost of pod %s/%s: %s", key.namespace, name, error)


def _may_lose_pods(
    key: ObjectKey, desired: Mapping[ChildKey, Manifest], observed: Observed
) -> bool:
    """Return whether an autoscaler may ask for fewer pods at any time, or this pass does."""
    wanted = desired.get(ChildKey(DEPLOYMENT, key.name))
    running = observed.workload_of(DEPLOYMENT)
    if wanted is None or running is None:
        return False
    if is_autoscalers(wanted):
        return True
    return 0 < int(wanted["spec"].get("replicas", 1)) < running.desired
