"""Digests a spec's request for its pods to a short text: equal until it requests other pods. Pure.

Made from people's words and settings, never from this version's rendering: so a newer operator,
which may render pods otherwise, sees that the request is unchanged. Stored on children and compared
with the digests of other versions there: the form must stay as it is (a test pins it).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain.profile import Profile

# The number of pods, their finders and their replacement: no pod notices. A field that is not
# listed here counts, which costs at most an unneeded rollout.
NOT_OF_PODS = (
    *("replicas", "suspend", "adapters", "autoscaling", "gateway", "monitoring", "networkPolicy"),
    *("canary", "slo"),
    *("frontend", "jobs", "objects", "profile"),
)
NOT_OF_PODS_IN_ROLLOUT = (
    *("strategy", "progressDeadlineSeconds", "autoRollback", "window", "urgent"),
)


def spec_digest(
    spec: AtomDeploymentSpec, image: str, config_text: str | None, profile: Profile | None = None
) -> str:
    """Digest the request for pods; `image` is the engine's after defaulting, `config_text` the
    target of configRef. A profile's settings are in the spec already, except for its pod
    template."""
    asked = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for name in NOT_OF_PODS:
        asked.pop(name, None)
    for name in NOT_OF_PODS_IN_ROLLOUT:
        asked.get("rollout", {}).pop(name, None)
    if spec.gateway is not None and spec.gateway.prefix_aware:
        asked["gateway"] = {"prefixAware": True}  # the one thing there that pods notice
    if spec.frontend is not None:
        asked["frontend"] = True  # pods take answers over from it, by a secret that they mount
    if spec.disaggregation is not None:
        asked["disaggregation"] = _role(asked["disaggregation"])
    if spec.autoscaling is not None and spec.autoscaling.idle is not None:
        idle = {"idle": spec.autoscaling.idle, "idleSeconds": spec.autoscaling.idle_seconds}
        asked["autoscaling"] = idle  # for the same reason
    asked = {name: value for name, value in asked.items() if value not in (None, {})}
    parts: list[Any] = [asked, image, config_text]
    if profile is not None and profile.template is not None:
        parts.append(profile.template)
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _role(divided: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of spec.disaggregation that the pods of a role notice; the fields in which
    decode pods differ from the rest of the spec are in that already."""
    role = "prefill" if divided.get("prefillFor") is not None else "decode"
    return {"role": role, **_only(divided, ("transport",))}


# --- the spec that is carried out -----------------------------------------------------------------

_IDLE = ("idle", "idleSeconds")  # of autoscaling: pods get their idle time
_OF_REQUESTS = ("decide", "traffic")  # of disaggregation
_NUMBERS = ("replicas", "autoscaling")  # of a role


def spec_in_force(newest: Mapping[str, Any], pods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec that is carried out while other pods run than `newest` asks for: the fields
    that pods notice from the spec `pods`, and all others from `newest`."""
    merged = {name: value for name, value in pods.items() if name not in NOT_OF_PODS}
    merged |= {name: newest[name] for name in NOT_OF_PODS if name in newest}
    merged["rollout"] = {
        **_without(pods.get("rollout"), NOT_OF_PODS_IN_ROLLOUT),
        **_only(newest.get("rollout"), NOT_OF_PODS_IN_ROLLOUT),
    }
    merged["gateway"] = {
        **_without(newest.get("gateway"), ("prefixAware",)),
        **_only(pods.get("gateway"), ("prefixAware",)),
    }
    merged["autoscaling"] = _autoscaling(newest.get("autoscaling"), pods.get("autoscaling"))
    merged["frontend"] = _frontend(newest.get("frontend"), pods.get("frontend"))
    if merged.get("disaggregation") is not None:
        merged["disaggregation"] = _roles(newest.get("disaggregation"), pods["disaggregation"])
    for name in ("rollout", "gateway", "autoscaling"):
        if not merged[name]:
            del merged[name]
    if merged.get("frontend") is None:
        merged.pop("frontend", None)
    return merged


def _autoscaling(newest: Mapping[str, Any] | None, pods: Mapping[str, Any] | None) -> Any:
    """Return the newest bounds with the idle sleep of the pods. Pods that sleep keep the bounds
    they had if autoscaling is no longer asked for, since idle sleep needs some."""
    idle = _only(pods, _IDLE)
    if newest is None and idle.get("idle") is not None:
        fewest = (pods or {}).get("minReplicas", 1)
        return {"minReplicas": fewest, "maxReplicas": max(1, fewest), **idle}
    return {**_without(newest, _IDLE), **idle} if newest is not None else None


def _roles(newest: Mapping[str, Any] | None, pods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the roles of the pods with the newest numbers of replicas, and the newest choice of
    the requests that are divided."""
    if newest is None:
        return dict(pods)
    merged = {**_without(pods, _OF_REQUESTS), **_only(newest, _OF_REQUESTS)}
    for role in ("prefill", "decode"):
        own, asked = pods.get(role), newest.get(role)
        fields = {**_without(own, _NUMBERS), **_only(asked, _NUMBERS)}
        if own is not None or fields:
            merged[role] = fields
    return merged


def _frontend(newest: Any, pods: Any) -> Any:
    """Return the frontend that the pods take answers over from, as it is asked for by now."""
    if pods is None:
        return None
    return pods if newest is None else newest


def _only(fields: Mapping[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in (fields or {}).items() if name in names}


def _without(fields: Mapping[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in (fields or {}).items() if name not in names}
