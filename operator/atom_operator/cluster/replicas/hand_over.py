"""Leave the number of replicas to an autoscaler without a jump.

With server-side apply, a manager that stops applying a field removes it, and the API server would
set its default of 1. So another manager takes the field over first, at its present value; the
autoscaler's first change then makes it its own (Kubernetes docs: server-side apply, transferring
ownership). Idempotent: a crash in between is repaired by the next pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from atom_operator.cluster.observe import is_autoscalers
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import ChildKey, Manifest, ObjectKey, runs_engines


async def give_up_replicas(
    port: ClusterPort,
    key: ObjectKey,
    desired: Mapping[ChildKey, Manifest],
    owned: Mapping[ChildKey, Manifest],
) -> None:
    """Hand over the replicas fields that the next apply will leave out for the first time."""
    for child, manifest in desired.items():
        if not runs_engines(child, manifest) or not is_autoscalers(manifest):
            continue
        before = owned.get(child)
        if before is not None and not is_autoscalers(before):
            replicas = int(before["spec"].get("replicas", 1))
            await port.hand_over_replicas(child.kind, key.namespace, child.name, replicas)
