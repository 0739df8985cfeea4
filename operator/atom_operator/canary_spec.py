"""The spec of a canary, and of its promotion: a change merged over the rest of the spec. Pure.

Maps are merged key by key, lists of named items by name; any other value of the change wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator import constants
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.canary import CanaryAnalysis as AnalysisSpec
from atom_operator.children import naming
from atom_operator.children.canary import content_digest
from atom_operator.domain import FieldProblem, ObjectKey
from atom_operator.domain.canary import CanaryAnalysis, CanaryAsked, CanaryQuery, CanaryStep
from atom_operator.plan.canary.size import pods_asked
from atom_operator.plan.resolve_integrations import first_replicas
from atom_operator.plan.spec_digest import spec_digest
from atom_operator.validation.defaulting import served_name
from atom_operator.validation.joined_specs import joined
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import decode_pods, without_numbers
from atom_operator.validation.rules import overlay_problems, validate

_MIN_REQUESTS, _INTERVAL_SECONDS, _FAILURES = 20, 60, 3
# Of the model that another source takes the place of.
_OF_THE_SOURCE = frozenset({"config", "configRef", "revision"})
_OF_THE_SCHEME = frozenset({"tokenSecretRef", "s3", "image"})


def promoted_spec(raw: Mapping[str, Any], spec: AtomDeploymentSpec) -> dict[str, Any]:
    """Return the spec of `raw`, whose typed form is `spec`, with its canary's change."""
    change: Mapping[str, Any] = raw["canary"]["change"]
    below = dict(raw)
    if source := (change.get("model") or {}).get("source"):
        other = source.partition("://")[0] != raw["model"]["source"].partition("://")[0]
        dropped = _OF_THE_SOURCE | (_OF_THE_SCHEME if other else frozenset())
        kept = {k: v for k, v in raw["model"].items() if k not in dropped}
        below["model"] = {**kept, "servedName": served_name(spec)}
    return joined(below, change)


def canary_spec(
    raw: Mapping[str, Any], spec: AtomDeploymentSpec, replicas: int | None = None
) -> dict[str, Any]:
    """Return the spec of the canary's own AtomDeployment. Its replicas are its own (by default the
    most that its steps ask for), no autoscaler moves them, no window keeps it from being another,
    and requests come by the route of the other."""
    spec = decode_pods(spec)
    assert spec.canary is not None
    result = promoted_spec(raw, spec)
    if result.get("disaggregation") is not None:
        result["disaggregation"] = without_numbers(result["disaggregation"])
    gateway = {k: v for k, v in (result.get("gateway") or {}).items() if k != "httpRoute"}
    rollout = {k: v for k, v in (result.get("rollout") or {}).items() if k != "window"}
    for name in ("canary", "autoscaling", "gateway", "rollout"):
        result.pop(name, None)
    if rollout:
        result["rollout"] = rollout
    if gateway:
        result["gateway"] = gateway
    if replicas is None:
        asked, beside = asked_of(raw, spec), first_replicas(spec)
        replicas = max(pods_asked(asked, step, beside) for step in range(len(asked.steps)))
    if spec.autoscaling is not None and spec.autoscaling.idle is not None:
        asked = raw["autoscaling"]  # whose pods sleep in a number that stays
        idle = {k: v for k, v in asked.items() if k in ("idle", "idleSeconds")}
        result["autoscaling"] = {**idle, "minReplicas": replicas, "maxReplicas": replicas}
    return {**result, "replicas": replicas}


def asks_for_the_same(spec: AtomDeploymentSpec, other: Mapping[str, Any]) -> bool:
    """Return whether a stored spec asks for the same pods as `spec`."""
    found = parse_spec(other)
    return not isinstance(found, tuple) and _digest(found) == _digest(spec)


def pods_digest(stored: Mapping[str, Any]) -> str:
    """Digest the pods that a stored spec requests: equal for specs whose pods are equal."""
    spec = parse_spec(stored)
    return content_digest(stored) if isinstance(spec, tuple) else _digest(spec)


def change_problems(
    key: ObjectKey, spec: AtomDeploymentSpec, wanted: Mapping[str, Any]
) -> tuple[FieldProblem, ...]:
    """Return the problems of the overlays of `spec`, which has the canary; if there are none, those
    of the canary's own spec and name."""
    if overlays := tuple(overlay_problems(spec)):
        return overlays
    name, most = naming.canary_name(key), constants.MAX_NAME_LENGTH
    if len(name) > most:
        words = f"its AtomDeployment would be named {name}, of more than {most} characters"
        return (FieldProblem("spec.canary", f"{words}; give this one a shorter name"),)
    own = parse_spec(wanted)
    found = own if isinstance(own, tuple) else validate(own)
    return tuple(
        FieldProblem("spec.canary.change", f"makes {problem}", problem.reason) for problem in found
    )


def asked_of(raw: Mapping[str, Any], spec: AtomDeploymentSpec) -> CanaryAsked:
    """Return the canary that the spec asks for, with every default chosen."""
    asked = spec.canary
    assert asked is not None
    steps = [CanaryStep(step.weight, step.seconds) for step in asked.steps or ()]
    if not steps:
        steps = [CanaryStep(asked.weight or 1, None)]
    return CanaryAsked(
        change=content_digest(raw["canary"]["change"]),
        steps=tuple(steps),
        decision=asked.decision,
        decision_for=asked.decision_for,
        analysis=_analysis(asked.analysis) if asked.analysis else None,
        replicas=asked.replicas,
    )


def _analysis(asked: AnalysisSpec) -> CanaryAnalysis:
    return CanaryAnalysis(
        most_errors_percent=asked.max_error_percent,
        most_first_token_milliseconds=asked.max_first_token_milliseconds,
        min_requests=asked.min_requests or _MIN_REQUESTS,
        queries=tuple(
            CanaryQuery(each.name, each.query, each.min, each.max) for each in asked.queries or ()
        ),
        interval_seconds=asked.interval_seconds or _INTERVAL_SECONDS,
        failures=asked.failures or _FAILURES,
    )


def _digest(spec: AtomDeploymentSpec) -> str:
    return spec_digest(decode_pods(spec), spec.engine.image or "", None)
