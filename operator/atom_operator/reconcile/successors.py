"""Successors of pods that are to go: the API server is asked whether it would admit each.

Old pods go first, so their charge to a quota becomes free: its refusal counts only if that would
not be enough. Called by the moves off sick devices and by the choice of a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom_operator.children.device_claim import resource_claim_template
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.successor_judge import ask_for_claims, ask_for_successor
from atom_operator.domain import Manifest, ObjectKey, Observed, Plan, PodRevision, PodState
from atom_operator.plan.devices.sick_devices import group_of
from atom_operator.plan.quota import still_refused


@dataclass(frozen=True, slots=True)
class Departure:
    """Hold pods that are to go, the ones whose successors to ask about, and the number of
    successors. `claims`: the template of their ResourceClaims, which may not exist yet."""

    going: Sequence[PodState]
    asked: Sequence[PodState]
    following: int
    claims: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Successors:
    """Hold pods as admission would leave them, without those for which a quota has room only once
    the ones before have gone; why one of them would not be admitted even then; or why the API
    server did not judge one."""

    admitted: tuple[Manifest, ...] = ()
    refusal: str | None = None
    unknown: str | None = None


async def ask_for_successors(
    port: ClusterPort, key: ObjectKey, departure: Departure, template: Manifest
) -> Successors:
    """Return the API server's verdicts on the successors of the pods that go."""
    charged = [
        pod.placement.charged for pod in departure.going if pod.placement.charged is not None
    ]
    admitted = []
    for pod in departure.asked:
        judged = (
            await ask_for_successor(port, key, pod.name, template),
            *await ask_for_claims(port, key, pod.name, template, departure.claims),
        )
        for found in judged:
            if found.unknown is not None:
                return Successors(unknown=found.unknown)
            if found.refusal is None:
                admitted += [found.pod] if found.pod is not None else []
            elif still_refused(found.refusal, charged, departure.following):
                return Successors(refusal=found.refusal)
    return Successors(tuple(admitted))


async def refusal_of_rollout(
    port: ClusterPort, plan: Plan, observed: Observed, wanted: PodRevision
) -> str | None:
    """Return why no new pod would be admitted even if every old one went; None if one would, or if
    no serving pod could be lost. A server that cannot be asked delays no rollout: its own
    controllers report a refusal."""
    running = observed.deployment
    old = [pod for pod in observed.pods if pod.revision != wanted.name]
    serving = [pod for pod in old if pod.ready]
    if running is None or not serving:
        return None
    names = group_of(serving[0], old)
    asked = [pod for pod in old if pod.name in names]
    # Not all wanted pods need to fit: a new pod for each old one that serves is no loss.
    following = min(len(serving), running.desired * wanted.nodes)
    departure = Departure(
        old, asked, following, resource_claim_template(plan.identity, plan.engine, plan.accelerator)
    )
    found = await ask_for_successors(port, plan.identity.key, departure, wanted.template)
    return found.refusal
