"""The ConfigMap that shows the plan and the model facts, for people and tools. Pure.

Nothing mounts it: a plan that changes only its numbers restarts no pod.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from atom_operator import constants
from atom_operator.api.v1alpha1.engine import ENGINE_FIELDS
from atom_operator.api.v1alpha1.option_field import in_spec
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
    scaling = plan.integrations.autoscaling
    return {
        "autoscaling": scaling.targets if scaling else None,
        "model": {
            "argument": plan.model.location.argument,
            "revision": plan.model.location.revision,
        },
        "engine": _engine(plan.engine),
        "accelerator": plan.accelerator,
        "capacity": plan.capacity,
        "rollout": {"strategy": plan.rollout.chosen.strategy, "reason": plan.rollout.chosen.reason},
        "startup_budget_seconds": plan.rollout.startup_budget_seconds,
    }


def _engine(engine: EngineOptions) -> dict[str, Any]:
    """Return the options by the names of their fields in the spec, where there is one."""
    serving, drafts = engine.serving, engine.speculative
    rest = ("tensor_parallel", "data_parallel", "expert_parallel", "nodes", "lora")
    return {
        **{name: getattr(engine, name) for name in rest},
        **msgspec.to_builtins(serving),
        # Environment values may be confidential; they belong to the pod only.
        "env": [variable["name"] for variable in serving.env],
        **{name: in_spec(each, engine.value(each)) for name, each in ENGINE_FIELDS.items()},
        "speculative_tokens": drafts.tokens,
        "speculative_method": drafts.method,
        "speculative_adaptive": drafts.adaptive,
        "draft_model": drafts.model,
        "draft_facts": drafts.facts,
    }


def _json(value: object) -> str:
    """Write JSON as json.dumps(indent=2) spells it; that and dataclasses.asdict are a third of a
    reconcile."""
    text = json.dumps(msgspec.to_builtins(value), sort_keys=True)
    return msgspec.json.format(text, indent=2) + "\n"
