"""The specs of the two roles of spec.disaggregation, from the one spec that has both. Pure.

The top level of a spec describes the decode pods, with the fields of disaggregation.decode over it.
The prefill pods belong to another AtomDeployment, whose spec is made from the plan of the decode
pods: every default is resolved in it (profile, image), so that the prefill pods change only with
the decode pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import Plan
from atom_operator.domain.profile import Profile
from atom_operator.validation.joined_specs import joined

# Of the whole, or resolved in other fields of a prefill pod's spec.
_NOT_OF_PREFILL = frozenset(
    {"replicas", "autoscaling", "frontend", "gateway", "canary", "disaggregation", "profile"}
)
# A pair begins its rollouts as one, and a prefill leg is never handed over.
_NOT_OF_PREFILL_IN_ROLLOUT = frozenset({"window", "urgent", "handover"})
_NOT_OF_PREFILL_IN_SLO = frozenset({"itl"})  # a prefill leg has one token
_JOINED = ("engine", "parallelism", "accelerator")
_IN_PLACE_OF_OURS = ("replicas", "autoscaling", "template")


def decode_pods(spec: AtomDeploymentSpec) -> AtomDeploymentSpec:
    """Return the spec of the pods that answer; the same one if prompts are not computed apart."""
    divided = spec.disaggregation
    if divided is None or divided.prefill is None:
        return spec
    raw = _written(spec)
    role = raw["disaggregation"].get("decode") or {}
    result = _of_role(raw, role)
    if result.get("frontend") is None:
        result["frontend"] = {}  # which sends both parts of a request
    return AtomDeploymentSpec.model_validate(result)


def prefill_pods(plan: Plan) -> dict[str, Any] | None:
    """Return the spec of the AtomDeployment of the prefill pods that go with the decode pods of
    `plan`; None if no prompts are computed apart."""
    raw = plan.spec.asked
    divided = raw.get("disaggregation") or {}
    role = divided.get("prefill")
    if role is None:
        return None
    below = {name: value for name, value in raw.items() if name not in _NOT_OF_PREFILL}
    rollout = _without(below.pop("rollout", None), _NOT_OF_PREFILL_IN_ROLLOUT)
    result = _of_role(below, role)
    result["engine"] = {**(result.get("engine") or {}), "image": plan.engine.serving.image}
    result.setdefault("replicas", 1)
    if rollout:
        result["rollout"] = rollout
    slo = _without(result.pop("slo", None), _NOT_OF_PREFILL_IN_SLO)
    if slo.get("ttft") is not None:
        result["slo"] = slo
    if result.get("networkPolicy") is not None:
        result["networkPolicy"] = {**result["networkPolicy"], "clients": []}
    result["disaggregation"] = _mark(plan, divided)
    return result


def read_profile(stored: Mapping[str, Any]) -> Profile:
    """Return the profile that is written in the spec of prefill pods."""
    return Profile(
        str(stored.get("name")),
        template=stored.get("template"),
        service_account=stored.get("serviceAccountName"),
    )


def without_numbers(divided: Mapping[str, Any]) -> dict[str, Any]:
    """Return spec.disaggregation for pods of a fixed number: without replicas and autoscalers."""
    fixed = dict(divided)
    for role in ("prefill", "decode"):
        if isinstance(divided.get(role), Mapping):
            fixed[role] = _without(divided[role], frozenset({"replicas", "autoscaling"}))
    return fixed


def _mark(plan: Plan, divided: Mapping[str, Any]) -> dict[str, Any]:
    mark: dict[str, Any] = {"prefillFor": plan.identity.key.name}
    if divided.get("transport") is not None:
        mark["transport"] = divided["transport"]
    profile = plan.pods.profile
    if profile is not None:
        kept = {
            "name": profile.name,
            "template": profile.template,
            "serviceAccountName": profile.service_account,
        }
        mark["profile"] = {name: value for name, value in kept.items() if value is not None}
    return mark


def _of_role(raw: Mapping[str, Any], role: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the fields of a role over the rest of a spec."""
    result = dict(raw)
    for name in _JOINED:
        if role.get(name):
            result[name] = joined(raw.get(name) or {}, role[name])
    for name in _IN_PLACE_OF_OURS:
        if role.get(name) is not None:
            result[name] = role[name]
    return result


def _without(fields: Mapping[str, Any] | None, names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in (fields or {}).items() if name not in names}


def _written(spec: AtomDeploymentSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
