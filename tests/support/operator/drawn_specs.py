"""Specs of AtomDeployments that are drawn at random: several fields at once, each with a value that
alone is valid. A field that is added to the API gets a line here.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from atom_operator.plan.model_facts import catalogue_config
from tests.support.covering_draws import covering_draws

CPU: dict[str, Any] = {"type": "cpu", "memory": "2Ti"}
GPU: dict[str, Any] = {"type": "amd", "product": "MI300X"}
# Kinds of models, whose caches and layers differ.
MODELS: dict[str, str] = {
    "dense": "hf://Qwen/Qwen3-0.6B",
    "experts": "hf://Qwen/Qwen3-30B-A3B",
    "fp8": "hf://Qwen/Qwen3-30B-A3B-FP8",
    "latent": "hf://deepseek-ai/DeepSeek-V2-Lite",
    "drafting": "hf://deepseek-ai/DeepSeek-V3",
    "windows": "hf://openai/gpt-oss-20b",
    "images": "hf://google/gemma-3-4b-it",
    "states": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct",
    "chunks": "hf://meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "pixtral": "hf://mistralai/Mistral-Small-3.1-24B-Instruct-2503",
}
_ROUTE = {"httpRoute": {"parentRefs": [{"name": "gate"}], "hostnames": ["chat.test"]}}
_PROMETHEUS = {"serverAddress": "http://prometheus:9090"}
_SIDE = {"name": "side", "image": "side:1", "ports": [{"name": "side", "containerPort": 9900}]}
_TEMPLATE = {"metadata": {"annotations": {"team": "a"}}, "spec": {"priorityClassName": "serving"}}

# By path below spec: values that are laid over the rest, objects field by field.
FIELDS: dict[str, tuple[Any, ...]] = {
    "replicas": (0, 3),
    "suspend": (True,),
    "engine.maxModelLen": (1024, 4096),
    "engine.maxNumSeqs": (1, 24, 4096),
    "engine.maxNumBatchedTokens": (256, 65536),
    "engine.blockSize": (32, 128),
    "engine.gpuMemoryUtilization": (0.5,),
    "engine.kvCacheDtype": ("fp8", "fp32", "bf16"),
    "engine.prefixCaching": (False, True),
    "engine.schedulingPolicy": ("prefillFirst",),
    "engine.deadlineMs": (500,),
    "engine.deadlineAction": ("queue", "refuse"),
    "engine.reproducible": (True,),
    "engine.maxImages": (0, 3),
    "engine.imageMemoryMib": (64, 512),
    "engine.apiKeySecretRef": ({"name": "keys"},),
    "engine.imagePullSecrets": ([{"name": "pull"}],),
    "engine.speculative": (
        {"method": "ngram", "tokens": 3},
        {"method": "suffix"},
        {"method": "mtp"},
        {"method": "eagle3", "draftModel": "hf://drafts/eagle", "adaptive": False},
        {"method": "draft_model", "draftModel": "hf://meta-llama/Llama-3.2-1B"},
    ),
    "engine.lora": ({}, {"maxLoras": 2, "maxCpuLoras": 8, "claims": ["adapters"]}),
    "engine.lora.experts": (True,),
    "adapters": ([{"name": "a", "source": "path:///adapters/a"}],),
    "engine.extraArgs": (
        ["--enable-sleep-mode"],
        ["--enable_sleep_mode"],
        ["--sleep-queue"],
        ["--quantization", "fp8"],
        ["--dtype=float32", "--backend", "triton"],
        ["--enable-eplb", "--eplb-config", '{"num_redundant_experts": 2}'],
        ["--max-step-seconds", "0.2"],
        ["--api-server-count", "2"],
        ["--enforce-eager"],
        ["--fairness", "clients"],
        ["--kv-offload-min-tokens=64"],
        ["--runner", "pooling"],
        ["--language-model-only"],
    ),
    "engine.env": ([{"name": "A", "value": "1"}, {"name": "HF_HOME", "value": "/cache/own"}],),
    "parallelism": (
        {"tensor": 2},
        {"tensor": 8},
        {"data": 2},
        {"data": 2, "tensor": 4},
        {"nodes": 2, "tensor": 4},
        {"expert": True, "tensor": 2},
        {"expert": True, "data": 2},
        {"expert": True, "data": 4, "nodes": 2},
    ),
    "autoscaling": (
        {"maxReplicas": 4, "prometheus": _PROMETHEUS},
        {"maxReplicas": 3, "method": "HPA", "minReplicas": 2},
        {"maxReplicas": 1, "minReplicas": 1, "idle": "Sleep", "idleSeconds": 60},
        {"maxReplicas": 4, "prometheus": _PROMETHEUS, "idle": "Sleep"},
        {"maxReplicas": 4, "minReplicas": 0, "activationQuery": "up", "prometheus": _PROMETHEUS},
    ),
    "slo": ({"ttft": "2s"}, {"itl": "50ms", "percentile": 99}),
    "accelerator.preflight": (True,),
    "accelerator.claim": ({},),
    "accelerator.deviceGroups": ([44, 109],),
    "rollout.strategy": ("Surge", "InPlace", "Recreate"),
    "rollout.handover": (True,),
    "rollout.drainSeconds": (0, 600),
    "rollout.window": ({"start": "22:00", "minutes": 60},),
    "canary": (
        {"change": {"engine": {"image": "atom:2"}}, "steps": [{"percent": 10}]},
        {"change": {"engine": {"maxNumSeqs": 8}}, "steps": [{"percent": 50}]},
    ),
    "disaggregation": (
        {"prefill": {}},
        {
            "prefill": {"replicas": 2, "engine": {"maxNumBatchedTokens": 8192}},
            "decide": {"minNonCachedTokens": 1024},
            "traffic": {"promptTokens": 3000, "answerTokens": 300},
            "transport": "TCP",
        },
        {
            "prefill": {"parallelism": {"tensor": 2}, "autoscaling": {"maxReplicas": 3}},
            "decode": {"engine": {"maxNumSeqs": 16}, "parallelism": {"tensor": 4}},
        },
    ),
    "frontend": ({}, {"replicas": 1, "memory": "2Gi"}),
    "gateway": (
        _ROUTE,
        {"inferencePool": {"name": "picker"}},
        {"prefixAware": True, **_ROUTE},
    ),
    "monitoring": ({"podMonitor": {}, "alerts": {}, "dashboard": {}},),
    "networkPolicy": ({}, {"clients": [{"podSelector": {}}]}),
    "cache.kv": (
        {"hostMemory": "8Gi"},
        {"hostMemory": "Auto"},
        {"hostMemory": "4Gi", "disk": {"size": "20Gi"}},
        {"hostMemory": "Auto", "disk": {"size": "20Gi", "claim": "blocks"}},
    ),
    "cache.compile": ({"claim": "kernels"},),
    "cache.weights": ({"claim": "weights", "prune": "WhenFull"},),
    "cache.ephemeralStorage": ("80Gi",),
    "model.servedName": ("chat-model",),
    "model.tokenSecretRef": ({"name": "hub"},),
    "model.revision": ("main",),
    "model.source": (
        "pvc://weights/model",
        "path:///models/model",
        "s3://bucket/model",
        "oci://registry.test/models/model:1",
    ),
    "objects": ({"labels": {"cost": "a"}},),
    "template": (_TEMPLATE, {"spec": {"containers": [_SIDE]}}),
    "jobs.activeDeadlineSeconds": (600,),
}


@dataclass(frozen=True)
class DrawnSpec:
    """One spec. changed: its fields that are not as in the simplest one, with their values."""

    model: str
    device: str
    changed: Mapping[str, Any]
    spec: dict[str, Any] = field(repr=False)


def spec_of(model: str, device: str, changed: Mapping[str, Any]) -> DrawnSpec:
    """Return the spec of a kind of model on a device, with the changed fields."""
    accelerator = {"gpu": GPU, "cpu": CPU}[device]
    config = dict(catalogue_config(MODELS[model]) or {})
    spec: dict[str, Any] = {
        "model": {"source": MODELS[model], "config": config},
        "accelerator": dict(accelerator),
        "replicas": 1,
    }
    for path, value in changed.items():
        *outer, name = path.split(".")
        place = spec
        for part in outer:
            place = place.setdefault(part, {})
        fresh = copy.deepcopy(value)
        if isinstance(fresh, dict) and isinstance(place.get(name), dict):
            fresh = {**fresh, **place[name]}
        place[name] = fresh
    return DrawnSpec(model, device, changed, spec)


def covering_specs(seed: int, most: int = 4) -> Iterator[DrawnSpec]:
    """Yield specs with up to `most` changed fields, so that any two fields change together in at
    least one of them."""
    draw = random.Random(seed)
    for paths in covering_draws(list(FIELDS), most, draw):
        changed = {path: draw.choice(FIELDS[path]) for path in sorted(paths, key=len)}
        yield spec_of(draw.choice(sorted(MODELS)), draw.choice(("gpu", "gpu", "cpu")), changed)
