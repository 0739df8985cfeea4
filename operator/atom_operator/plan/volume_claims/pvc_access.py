"""Access modes of a volume claim: several pods, a spare pod, or one at a time. Pure.

A claim that is ReadWriteOnce can be mounted on one node only, however often it is mounted read-only
there: a second pod elsewhere would stay in ContainerCreating for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.constants import LABEL_DEPLOYMENT, Reason
from atom_operator.domain import (
    EngineOptions,
    FieldProblem,
    Manifest,
    ModelLocation,
    ObjectKey,
    Plan,
    PodsPlan,
    ScalePlan,
)
from atom_operator.domain.resources import host_ports
from atom_operator.integration_values import Integrations

_SHARED_MODES = {"ReadWriteMany", "ReadOnlyMany"}
_ONE_POD_MODE = "ReadWriteOncePod"
_READ_ONLY_MODE = "ReadOnlyMany"
_HOST_LABEL = "kubernetes.io/hostname"
# By whether the pods write to the claim.
_SHARED_REMEDY = (
    "use a claim that is ReadWriteMany or ReadOnlyMany",
    "use a claim that is ReadWriteMany",
)


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim that pods mount, and the field that names it. writes: engines write to it, and
    servers without an engine do not mount it."""

    name: str
    field: str
    writes: bool = False


def access_modes(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the access modes of a PersistentVolumeClaim: the bound ones, or the requested ones;
    empty for none."""
    claim = claim or {}
    bound = (claim.get("status") or {}).get("accessModes")
    return frozenset(bound or (claim.get("spec") or {}).get("accessModes") or ())


def is_for_one_pod(modes: frozenset[str]) -> bool:
    """Return whether one pod at a time can mount it, wherever that is."""
    return modes == {_ONE_POD_MODE}


def mounted_claims(pod_spec: Mapping[str, Any]) -> tuple[str, ...]:
    """List every claim that pods with this spec share, including those of the user's overlay."""
    volumes = pod_spec.get("volumes")
    items = [item for item in volumes if isinstance(item, Mapping)] if volumes else []
    sources = [item.get("persistentVolumeClaim") for item in items]
    names = [found.get("claimName") for found in sources if isinstance(found, Mapping)]
    return tuple(dict.fromkeys(str(name) for name in names if name))


def is_for_one_node(modes: frozenset[str]) -> bool:
    """Return whether only pods of one node can mount it; a claim that is unknown is not judged."""
    return bool(modes) and not modes & _SHARED_MODES


def claims_of(
    engine: EngineOptions, location: ModelLocation, integrations: Integrations
) -> tuple[ClaimUse, ...]:
    """List every claim that the plan's pods mount."""
    weights, compiled = location.claim, integrations.compile_cache_claim
    found = []
    if weights is not None:
        field = "spec.cache.weights.claim" if location.download else "spec.model.source"
        found.append(ClaimUse(weights, field))
    if engine.lora is not None:
        field = "spec.engine.lora.claims"
        found.extend(ClaimUse(claim, field) for claim in engine.lora.claims)
    if compiled is not None:
        found.append(ClaimUse(compiled, "spec.cache.compile.claim", writes=True))
    tier = engine.serving.disk_tier
    if tier is not None and tier.claim is not None:
        found.append(ClaimUse(tier.claim, "spec.cache.kv.disk.claim", writes=True))
    return tuple(found)


def claim_problem(
    plan: Plan, use: ClaimUse, modes: frozenset[str], nodes: int | None
) -> FieldProblem | None:
    """Return why the plan's replicas cannot share a claim. `nodes` of the cluster, None if
    unknown."""
    if use.writes and modes == {_READ_ONLY_MODE}:
        message = (
            f"claim {use.name} is {_READ_ONLY_MODE}, and pods write to it; {_SHARED_REMEDY[1]}"
        )
        return FieldProblem(use.field, message, Reason.CLAIM_NOT_SHAREABLE)
    own, beside = _most_pods(plan.engine, plan.scale, plan.integrations), _pods_beside(plan, use)
    pods = own + sum(beside.values())
    if pods < 2 or not is_for_one_node(modes):
        return None
    one_pod = is_for_one_pod(modes)
    if not one_pod and (nodes == 1 or _keeps_to_one_host(plan.pods)):
        return None
    where = "one pod" if one_pod else "one node"
    remedies = [_SHARED_REMEDY[use.writes]]
    remedies += [] if beside else ["set spec.replicas to 1"]
    if not one_pod:
        remedies.append(
            f"keep all of them on one node by spec.template.spec.nodeSelector[{_HOST_LABEL}]"
        )
    counted = "".join(f", {count} of {field}" for field, count in beside.items())
    return FieldProblem(
        use.field,
        f"claim {use.name} is {', '.join(sorted(modes))}: {where} can mount it, and "
        f"{pods} pods{counted} may be placed on several; {_joined(remedies)}",
        Reason.CLAIM_NOT_SHAREABLE,
    )


def _joined(remedies: list[str]) -> str:
    *first, last = remedies
    return f"{', '.join(first)}, or {last}" if first else last


def _pods_beside(plan: Plan, use: ClaimUse) -> dict[str, int]:
    """Return how many pods beside the plan's own mount a claim, by the field that asks for them."""
    divided = (plan.spec.asked.get("disaggregation") or {}).get("prefill")
    prefill = 0 if divided is None else divided.get("replicas")
    frontend = plan.integrations.frontend
    found = {
        "spec.disaggregation.prefill": 1 if prefill is None else prefill,
        "spec.frontend": 0 if frontend is None or use.writes else frontend.replicas,
    }
    return {field: count for field, count in found.items() if count}


def canary_claim_problem(
    pods: PodsPlan, name: str, modes: frozenset[str], nodes: int | None
) -> FieldProblem | None:
    """Return why a canary's pods cannot mount a claim beside the others. `nodes` of the cluster,
    None if unknown."""
    one_pod = is_for_one_pod(modes)
    if not is_for_one_node(modes) or (not one_pod and (nodes == 1 or _keeps_to_one_host(pods))):
        return None
    where = "one pod" if one_pod else "one node"
    return FieldProblem(
        "spec.canary",
        f"claim {name} is {', '.join(sorted(modes))}: {where} can mount it, and the canary's pods"
        f" would mount it beside the others; {_SHARED_REMEDY[0]}, let spec.canary.change name"
        " weights on a claim of their own, or roll the change out without a canary",
        Reason.CLAIM_NOT_SHAREABLE,
    )


def _keeps_to_one_host(pods: PodsPlan) -> bool:
    below = pods.profile.template if pods.profile is not None else None
    return _is_on_one_host(below) or _is_on_one_host(pods.template)


def _most_pods(engine: EngineOptions, scale: ScalePlan, integrations: Integrations) -> int:
    scaling = integrations.autoscaling
    replicas = max(scale.replicas, scaling.max_replicas if scaling else 0)
    return replicas * engine.nodes


def _is_on_one_host(template: Mapping[str, Any] | None) -> bool:
    spec: Any = (template or {}).get("spec") or {}
    return bool((spec.get("nodeSelector") or {}).get(_HOST_LABEL))


def also_mounted_by(
    key: ObjectKey, claim: str, workloads: Iterable[Manifest]
) -> tuple[ObjectKey, ...]:
    """Return the other AtomDeployments of a namespace whose pods mount a claim."""
    found = (
        other
        for other, pod_spec in _pods_of_others(key, workloads)
        if other.namespace == key.namespace and claim in mounted_claims(pod_spec)
    )
    return tuple(dict.fromkeys(found))


def also_on_port(
    key: ObjectKey, pod_spec: Mapping[str, Any], workloads: Iterable[Manifest]
) -> tuple[tuple[int, ObjectKey], ...]:
    """Return the host ports that pods with this spec share with those of other AtomDeployments."""
    ours = host_ports(pod_spec)
    found = (
        (port.number, other)
        for other, theirs in _pods_of_others(key, workloads)
        for port in sorted(ours & host_ports(theirs))
    )
    return tuple(dict.fromkeys(found))


def _pods_of_others(
    key: ObjectKey, workloads: Iterable[Manifest]
) -> Iterator[tuple[ObjectKey, Mapping[str, Any]]]:
    for manifest in workloads:
        metadata = manifest["metadata"]
        name = (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT)
        other = ObjectKey(metadata["namespace"], str(name))
        for template in _templates(manifest["spec"]) if name and other != key else ():
            yield other, template.get("spec") or {}


def _templates(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the pod templates of a workload: one of a Deployment, two of a group."""
    group = spec.get("leaderWorkerTemplate") or {}
    found = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
    yield from (template for template in found if template)
