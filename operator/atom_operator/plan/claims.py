"""What a volume claim's access modes allow: several pods, a spare pod, or one at a time. Pure.

A claim that is ReadWriteOnce can be mounted on one node only, however often it is mounted read-only
there: a second pod elsewhere would stay in ContainerCreating for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem, Plan

_SHARED_MODES = {"ReadWriteMany", "ReadOnlyMany"}
_ONE_POD_MODE = "ReadWriteOncePod"
_HOST_LABEL = "kubernetes.io/hostname"


def access_modes(claim: Mapping[str, Any] | None) -> frozenset[str]:
    """Of a PersistentVolumeClaim: what it was bound with, or what it asks for; empty for none."""
    claim = claim or {}
    bound = (claim.get("status") or {}).get("accessModes")
    return frozenset(bound or (claim.get("spec") or {}).get("accessModes") or ())


def is_for_one_node(modes: frozenset[str]) -> bool:
    """Whether only pods of one node can mount it; a claim that is unknown is not judged."""
    return bool(modes) and not modes & _SHARED_MODES


def claim_problem(plan: Plan, modes: frozenset[str], nodes: int | None) -> FieldProblem | None:
    """Why the plan's replicas cannot share their claim. `nodes` of the cluster, None if unknown."""
    pods = _most_pods(plan)
    if pods < 2 or not is_for_one_node(modes):
        return None
    one_pod = modes == {_ONE_POD_MODE}
    if not one_pod and (nodes == 1 or _is_on_one_host(plan.template)):
        return None
    where = "one pod" if one_pod else "one node"
    field = "spec.cache.weights.claim" if plan.model.download else "spec.model.source"
    remedy = (
        "use a claim that is ReadWriteMany or ReadOnlyMany, or set spec.replicas to 1"
        if one_pod
        else "use a claim that is ReadWriteMany or ReadOnlyMany, set spec.replicas to 1, or keep "
        f"all replicas on one node by spec.template.spec.nodeSelector[{_HOST_LABEL}]"
    )
    return FieldProblem(
        field,
        f"claim {plan.model.claim} is {', '.join(sorted(modes))}: {where} can mount it, and "
        f"{pods} pods may be placed on several; {remedy}",
        Reason.CLAIM_NOT_SHAREABLE,
    )


def _most_pods(plan: Plan) -> int:
    scaling = plan.integrations.autoscaling
    replicas = max(plan.replicas, scaling.max_replicas if scaling else 0)
    return replicas * plan.engine.nodes


def _is_on_one_host(template: Mapping[str, Any] | None) -> bool:
    spec: Any = (template or {}).get("spec") or {}
    return bool((spec.get("nodeSelector") or {}).get(_HOST_LABEL))
