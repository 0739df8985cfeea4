"""The bar of a device's memory: the plan's own numbers, in a terminal and on the page."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import Owner, Plan
from atom_operator.memory_bar import MemoryPart, bar_lines, memory_parts
from atom_operator.page.overview import overview
from atom_operator.plan_report import facts
from atom_operator.reconcile.planning import Surroundings, plan_spec
from atom_operator.validation.parsing import parse_spec
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    TINY_CONFIG,
    atom_deployment,
    gpu_node,
    plan,
    spec,
)
from tests.support.thinned_cases import cover

_MOE = {
    **TINY_CONFIG,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 64,
    "hidden_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
_MODELS = {
    "dense": {"source": "hf://Qwen/Qwen3-8B"},
    "experts": {"source": "path:///models/moe", "config": _MOE},
    "windows": {"source": "hf://openai/gpt-oss-20b"},
    "latents": {"source": "hf://deepseek-ai/DeepSeek-V2-Lite"},
    "states": {"source": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct"},
}
_SPREADS: dict[str, dict[str, Any]] = {
    "one": {},
    "data": {"data": 8},
    "tensor": {"tensor": 4},
    "both": {"data": 2, "tensor": 4},
    "expert": {"data": 8, "expert": True},
    "nodes": {"tensor": 16, "nodes": 2},
    "expert nodes": {"data": 16, "nodes": 2, "expert": True},
}
_ENGINES: dict[str, dict[str, Any]] = {
    "default": {},
    "few sequences": {"maxNumSeqs": 4},
    "little": {"gpuMemoryUtilization": 0.8, "maxModelLen": 2048},
    "adapters": {"lora": {}},
}
_DEVICES = {
    "MI300X": {"type": "amd", "product": "MI300X"},
    "MI355X": {"type": "amd", "product": "MI355X"},
    "cpu": {"type": "cpu", "memory": "256Gi"},
}

_FORMS = list(product(_MODELS, _ENGINES, _DEVICES))


def held():
    made = plan(model={"source": "hf://Qwen/Qwen3-8B"}, accelerator={"product": "MI300X"})
    assert made.capacity.capacity is not None
    return made, made.capacity.capacity


@pytest.mark.parametrize("spread", _SPREADS)
def test_the_parts_are_those_of_one_device_in_every_form(spread: str) -> None:
    copies, seen = _SPREADS[spread].get("data", 1), 0
    for model, engine, device in [_FORMS[number] for number in sorted(cover(_FORMS, 2))]:
        raw = spec(
            model=_MODELS[model],
            parallelism=_SPREADS[spread],
            engine=_ENGINES[engine],
            accelerator=_DEVICES[device],
        )
        asked = parse_spec(raw)
        assert isinstance(asked, AtomDeploymentSpec)
        made = plan_spec(Owner(KEY, "uid"), asked, Surroundings(IMAGES))
        if not isinstance(made, Plan) or made.capacity.capacity is None:
            continue  # the form is refused, or does not fit
        seen += 1
        held = made.capacity.capacity
        parts = {part.name: part.size_bytes for part in memory_parts(held)}
        assert sum(parts.values()) == held.device.total_bytes, (model, engine, device)
        assert all(size >= 0 for size in parts.values()), (model, engine, device, parts)
        assert copies * held.device.kv_cache_bytes >= held.kv_tokens * held.kv_bytes_per_token
    assert seen >= 3


def test_the_parts_add_up_to_the_devices_memory() -> None:
    _, capacity = held()
    parts = {part.name: part.size_bytes for part in memory_parts(capacity)}
    assert sum(parts.values()) == capacity.device.total_bytes
    assert parts["weights"] == capacity.weights_bytes
    assert parts["KV cache"] >= capacity.kv_tokens * capacity.kv_bytes_per_token
    assert parts["left free"] > 0  # gpuMemoryUtilization


def test_plan_draws_the_bar_and_says_what_its_shades_are() -> None:
    made, capacity = held()
    found = [text for label, text in facts(made) if label.startswith("memory")]
    assert found == list(bar_lines(memory_parts(capacity)))
    bar, legend = found
    assert len(bar) == 48
    assert [shade for shade in "█▓▒░" if shade in bar] == list("█▓▒░")
    assert "█ weights 15.3 GiB" in legend


def test_what_is_small_is_seen_and_what_is_not_there_is_not() -> None:
    sizes = {"weights": 1, "runtime": 0, "cache": 10**9, "free": 0}
    bar, _ = bar_lines([MemoryPart(name, size) for name, size in sizes.items()])
    assert (bar.count("█"), bar.count("▓"), bar.count("▒"), len(bar)) == (1, 0, 47, 48)


def test_the_page_says_conditions_as_sentences() -> None:
    manifest = atom_deployment()
    manifest["status"] = {
        "readyReplicas": 1,
        "replicas": 2,
        "rollout": {"strategy": "Surge", "reason": "a device is free", "updated": 1, "ready": 1},
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "R", "message": "1 of 2 replicas serve"},
            {"type": "CapacityLimited", "status": "False", "reason": "R", "message": "it is not"},
            {"type": "Progressing", "status": "True", "reason": "R", "message": "pods start"},
            {"type": "ModelCached", "status": "Unknown", "reason": "NotSeen", "message": ""},
        ],
    }
    (shown,) = overview([(manifest, held()[1])], [gpu_node("node-a")], [])["deployments"]
    assert [(each["text"], each["good"]) for each in shown["conditions"]] == [
        ("Ready: no. 1 of 2 replicas serve", False),
        ("Capacity limited: no. It is not", True),
        ("Progressing: yes. Pods start", None),
        ("Model cached: unknown. NotSeen", None),
    ]
    assert shown["replicas"] == "1 of 2 pods serve"
    assert shown["rollout"] == "Surge: a device is free (1 of the newest revision, 1 serve)"
    assert shown["memory"]["parts"][0]["name"] == "weights"


def test_a_deployment_that_nobody_has_looked_at_and_forbidden_nodes_are_shown() -> None:
    found = overview([(atom_deployment(), None)], None, [])
    assert found["nodes"] is None
    assert found["deployments"][0]["memory"] is None
    assert found["deployments"][0]["conditions"] == []
