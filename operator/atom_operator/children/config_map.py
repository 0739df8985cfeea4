"""The ConfigMap that shows the plan and the model facts, for people and tools. Pure.

Nothing mounts it: a plan that changes only its numbers restarts no pod.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import EngineOptions, Identity, Manifest, ModelPlan, Plan


def plan_config_map(plan: Plan) -> Manifest:
    """Render plan.json, the decisions with their reasons, and model-facts.json, the shape they were
    computed from."""
    data = {"plan.json": _json(_decisions(plan))}
    if plan.model.facts is not None:
        data["model-facts.json"] = _json(plan.model.facts)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": naming.metadata(plan.identity, naming.config_map_name(plan.identity.key)),
        "data": data,
    }


def adapters_config_map(
    identity: Identity, engine: EngineOptions, model: ModelPlan
) -> Manifest | None:
    """Render the list of adapters that pods follow; None if they serve none."""
    if engine.lora is None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": naming.metadata(identity, naming.adapters_name(identity.key)),
        "data": {constants.ADAPTERS_KEY: _json(model.adapters)},
    }


def inspected_config_map(identity: Identity, model: ModelPlan) -> Manifest | None:
    """Render the config.json that a Job has read, so that it is read once; None if none was."""
    if model.inspected is None:
        return None
    annotations = {constants.ANNOTATION_MODEL: model.inspected.model}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": naming.metadata(identity, f"{identity.key.name}-model", annotations),
        "data": {constants.INSPECTED_KEY: model.inspected.text},
    }


def _decisions(plan: Plan) -> dict[str, Any]:
    engine = msgspec.to_builtins(plan.engine)
    # Environment values may be confidential; they belong to the pod only.
    engine["env"] = [variable["name"] for variable in plan.engine.env]
    scaling = plan.integrations.autoscaling
    return {
        "autoscaling": scaling.targets if scaling else None,
        "model": {
            "argument": plan.model.location.argument,
            "revision": plan.model.location.revision,
        },
        "engine": engine,
        "accelerator": plan.accelerator,
        "capacity": plan.capacity,
        "rollout": {"strategy": plan.rollout.chosen.strategy, "reason": plan.rollout.chosen.reason},
        "startup_budget_seconds": plan.rollout.startup_budget_seconds,
    }


def _json(value: object) -> str:
    """Write JSON as json.dumps(indent=2) spells it; that and dataclasses.asdict are a third of a
    reconcile."""
    text = json.dumps(msgspec.to_builtins(value), sort_keys=True)
    return msgspec.json.format(text, indent=2) + "\n"
