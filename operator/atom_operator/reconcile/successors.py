"""Whether pods that are to go would be followed: the API server is asked for each of them.

Old pods go first, so what a quota counts for them comes free: its refusal stands only where that
would not be enough. Called by the moves off sick devices and by the choice of a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.successor_judge import ask_for_successor
from atom_operator.domain import Manifest, ObjectKey, PodState
from atom_operator.plan.quota import still_refused


@dataclass(frozen=True, slots=True)
class Successors:
    """Hold pods as admission would leave them, without those for which a quota has room only once
    the ones before have gone; or why one of them would not be admitted even then."""

    admitted: tuple[Manifest, ...] = ()
    refusal: str | None = None


async def ask_for_successors(
    port: ClusterPort, key: ObjectKey, going: Sequence[PodState], template: Manifest
) -> Successors:
    """Return what becomes of the pods that follow these. Raises TransientError where the API server
    does not answer."""
    charged = [pod.charged for pod in going if pod.charged is not None]
    admitted = []
    for pod in going:
        found = await ask_for_successor(port, key, pod.name, template)
        if found.refusal is None:
            admitted += [found.pod] if found.pod is not None else []
        elif still_refused(found.refusal, charged, len(going)):
            return Successors(refusal=found.refusal)
    return Successors(tuple(admitted))
