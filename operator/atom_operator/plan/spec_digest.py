"""Digests what a spec asks of its pods to a short text: equal until other pods are asked for. Pure.

Of what people and settings say, never of what this version makes of it: so a newer operator, which
may render pods otherwise, sees that nothing new was asked for. Kept on children and compared with
what other versions wrote there: the form must stay as it is (a test pins it).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain.profile import Profile

# How many pods there are, who finds them, and how they are replaced: no pod notices. A field that
# is not here counts, which costs at most a rollout that could have been spared.
_NOT_OF_PODS = (
    *("replicas", "suspend", "adapters", "autoscaling", "gateway", "monitoring", "networkPolicy"),
    "canary",
    *("frontend", "jobs", "objects", "profile"),
)
_NOT_OF_PODS_IN_ROLLOUT = (
    *("strategy", "progressDeadlineSeconds", "autoRollback", "window", "urgent"),
)


def spec_digest(
    spec: AtomDeploymentSpec, image: str, config_text: str | None, profile: Profile | None = None
) -> str:
    """Digest what pods are made of; `image` is the engine's after defaulting, `config_text` what
    configRef points at. What a profile says is in the spec, but for its pod template."""
    asked = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for name in _NOT_OF_PODS:
        asked.pop(name, None)
    for name in _NOT_OF_PODS_IN_ROLLOUT:
        asked.get("rollout", {}).pop(name, None)
    if spec.gateway is not None and spec.gateway.prefix_aware:
        asked["gateway"] = {"prefixAware": True}  # the one thing there that pods notice
    if spec.frontend is not None and spec.rollout.handover:
        asked["frontend"] = True  # where pods that go hand their answers over
    if spec.autoscaling is not None and spec.autoscaling.idle is not None:
        idle = {"idle": spec.autoscaling.idle, "idleSeconds": spec.autoscaling.idle_seconds}
        asked["autoscaling"] = idle  # likewise
    asked = {name: value for name, value in asked.items() if value not in (None, {})}
    parts: list[Any] = [asked, image, config_text]
    if profile is not None and profile.template is not None:
        parts.append(profile.template)
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
