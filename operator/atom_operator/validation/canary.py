"""Rules about spec.canary: what must be there for a share of the requests to go to other pods."""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import FieldProblem

_FIELD = "spec.canary"


def canary_has_a_route(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield a problem without a route of ours: only that can divide the requests."""
    if spec.canary is None:
        return
    gateway = spec.gateway
    if gateway is None or gateway.http_route is None:
        yield FieldProblem(
            _FIELD,
            "needs a Gateway, which divides the requests by their share: set"
            " spec.gateway.httpRoute, or roll the change out without a canary",
        )
    elif gateway.inference_pool is not None:
        yield FieldProblem(
            _FIELD,
            "needs pods of its own behind the route, and the picker of spec.gateway.inferencePool"
            " chooses from one pool: use spec.gateway.prefixAware, which runs one for each, or"
            " leave the pool out",
        )
    if spec.canary.weight is None and not spec.canary.steps:  # CEL has this rule too
        yield FieldProblem(_FIELD, "has no share: set weight or steps")


def canary_warnings(spec: AtomDeploymentSpec) -> tuple[str, ...]:
    """Warn about a share of the requests that a number of pods which the spec names cannot carry:
    each of them would have more work than a pod beside it, and be judged slow for that."""
    canary, scaling = spec.canary, spec.autoscaling
    if canary is None or canary.replicas is None:
        return ()
    scaled = scaling is not None and scaling.moves_replicas
    most = scaling.max_replicas if scaling is not None and scaled else spec.replicas
    share = max(canary.weight or 0, *(step.weight for step in canary.steps or ()), 0)
    own, needed = canary.replicas, -(-share * most // 100)
    if needed <= own:
        return ()
    return (
        f"{_FIELD}.replicas: {share}% of the requests of {most} replicas are the work of {needed}, "
        f"and the canary has {own}: leave it out, so that its pods follow the share, or set "
        f"replicas: {needed}, or smaller shares",
    )
