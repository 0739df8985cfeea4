"""The engine container: command line, probes, environment, mounts, resources. Pure.

The contract with the engine is its command line and its endpoints, all on one port: /startup (200
also when the budget is spent and the load still moves), /health (ready to serve), /live (not dead
and not stalled) and /metrics.
"""

from __future__ import annotations

import math
from typing import Any

from atom_operator import constants
from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.children import naming, volumes
from atom_operator.children.device_claim import devices_of_container
from atom_operator.children.disaggregation.kv_transfer import (
    transfer_arguments,
    transfer_environment,
    transfer_ports,
)
from atom_operator.children.endpoint_picker.cache_events import (
    event_arguments,
    event_environment,
    event_ports,
)
from atom_operator.children.leader_worker_set import group_arguments, group_environment
from atom_operator.children.model_sources.bucket_access import bucket_environment
from atom_operator.children.option_arguments import (
    changed_options,
    stated_switches,
    stated_values,
)
from atom_operator.domain import (
    Accelerator,
    EngineOptions,
    ModelLocation,
    Plan,
    PodsPlan,
    RolloutPlan,
    SpeculativeOptions,
)

# The endpoints of a stopping pod leave the Service during this pause, before it refuses work.
PRE_STOP_SECONDS = 5
COMMAND = ["python3", "-m", "atom.entrypoints.openai_server"]
_STARTUP_PERIOD_SECONDS = {"cpu": 2, "amd": 10}
# Host cores and GiB for each copy of the model: staging of weights, tokenisation, the server. No
# memory limit: page cache of the weights would count against it.
_GPU_HOST_CORES = 2
_CPU_REQUEST = "250m"


def engine_container(plan: Plan) -> dict[str, Any]:
    """Render the container that serves."""
    return {
        "name": constants.ENGINE_CONTAINER,
        "image": plan.engine.serving.image,
        "command": list(COMMAND),
        "args": engine_args(plan),
        "ports": [
            {"name": name, "containerPort": number, "protocol": "TCP"}
            for name, number in {
                constants.ENGINE_PORT_NAME: constants.ENGINE_PORT,
                **event_ports(plan.engine, plan.integrations),
                **transfer_ports(plan.engine),
            }.items()
        ],
        "env": _environment(plan),
        "resources": _resources(plan.engine, plan.accelerator, plan.pods),
        "volumeMounts": volumes.mounts(plan),
        "startupProbe": _startup_probe(plan.accelerator, plan.rollout),
        "readinessProbe": {**http_probe("/health", 2), "failureThreshold": 2},
        "livenessProbe": {**http_probe("/live", 10), "failureThreshold": 3},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        # The engine's last lines have the reason of its end; they reach the Degraded condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def engine_args(plan: Plan) -> list[str]:
    """Return the engine's command line; extraArgs come last."""
    engine: EngineOptions = plan.engine
    place: list[tuple[str, object]] = [
        ("--model", plan.model.location.argument),
        ("--served-model-name", engine.serving.served_name),
        ("--host", "::"),
        ("--server-port", constants.ENGINE_PORT),
    ]
    sizes: list[tuple[str, object]] = [
        ("--tensor-parallel-size", engine.tensor_parallel),
        # Left out for one copy: an older image may not know it.
        ("--data-parallel-size", engine.data_parallel if engine.data_parallel > 1 else None),
        ("--revision", plan.model.location.revision),
        ("--drain-seconds", engine.serving.drain_seconds),
        ("--startup-budget-seconds", plan.rollout.startup_budget_seconds),
    ]
    args = [*_words(place), *stated_values(engine), *_words(sizes), *stated_switches(engine)]
    if engine.serving.handover:
        fronted = plan.integrations.frontend is not None
        url = (
            naming.workers_url(plan.identity.key)
            if fronted
            else naming.service_url(plan.identity.key)
        )
        args.extend(["--handover-url", url])
    args.extend(volumes.peer_arguments(plan.engine, plan.integrations))
    args.extend(changed_options(engine))
    tier_bytes = engine.serving.host_tier_bytes
    if tier_bytes:
        args.extend(["--kv-offloading-size", f"{tier_bytes / 2**30:.10g}"])
    disk_tier = engine.serving.disk_tier
    if disk_tier is not None:
        args.extend(["--kv-disk-dir", volumes.KV_DISK_FOLDER])
        args.extend(["--kv-disk-size", f"{disk_tier.size_bytes / 2**30:.10g}"])
    idle_seconds = engine.serving.sleep_idle_seconds
    if idle_seconds is not None:
        args.extend(["--enable-sleep-mode", "--sleep-idle-seconds", str(idle_seconds)])
    if engine.expert_parallel:
        args.append("--enable-expert-parallel")
    if engine.shares_experts:
        args.append("--enable-dp-attention")
    args.extend(_draft_arguments(engine.speculative))
    if engine.serving.api_key_secret is not None:
        args.extend(["--api-key-file", volumes.API_KEY_PATH])
    args.extend(lora_arguments(engine))
    return [
        *args,
        *group_arguments(plan.engine),
        *event_arguments(plan.engine, plan.integrations),
        *transfer_arguments(plan.engine),
        *engine.serving.extra_args,
    ]


def engine_line(plan: Plan) -> list[str]:
    """Return the engine's command line with the values that variables of its group have in the
    first pod."""
    values = {
        f"$({name})": str(source.get("value", "0"))
        for name, source in group_environment(plan.engine).items()
    }
    return [values.get(word, word) for word in engine_args(plan)]


def _words(pairs: list[tuple[str, object]]) -> list[str]:
    return [text for flag, value in pairs if value is not None for text in (flag, str(value))]


def _draft_arguments(drafts: SpeculativeOptions) -> list[str]:
    args = []
    if drafts.method is not None:
        args += ["--method", drafts.method, "--num-speculative-tokens", str(drafts.tokens)]
    if not drafts.adaptive:
        args += ["--speculative-config", '{"adaptive": false}']
    if drafts.model is not None:
        args += ["--draft-model", drafts.model]
    return args


def lora_arguments(engine: EngineOptions) -> list[str]:
    """Return the flags for the number of adapters; their list is in a file that may change."""
    lora = engine.lora
    if lora is None:
        return []
    numbers = {
        "--max-loras": lora.max_loras,
        "--max-lora-rank": lora.max_rank,
        "--max-cpu-loras": lora.max_cpu_loras,
    }
    sized = [text for flag, value in numbers.items() for text in (flag, str(value))]
    experts = ["--lora-experts"] if lora.experts else []
    return ["--enable-lora", *sized, *experts, "--lora-modules-file", volumes.ADAPTERS_PATH]


def _environment(plan: Plan) -> list[dict[str, Any]]:
    fixed = {
        **volumes.cache_environment(plan.engine, plan.accelerator, plan.integrations),
        **group_environment(plan.engine),
    }
    rendered: dict[str, dict[str, Any]] = {
        name: {"name": name, **source} for name, source in fixed.items()
    }
    rendered |= (
        _hub_token(plan.engine, plan.model.location)
        | bucket_environment(plan.model.location.bucket)
        | event_environment(plan.engine, plan.integrations)
        | transfer_environment(plan.engine)
    )
    for variable in plan.engine.serving.env:
        rendered[variable["name"]] = dict(variable)
    return list(rendered.values())


def _hub_token(engine: EngineOptions, location: ModelLocation) -> dict[str, dict[str, Any]]:
    """Return the token with which the pod itself downloads: the model, or the draft model of one
    that a Job has downloaded. A pod that downloads adapters while it serves reads the token from a
    file that follows the Secret."""
    if volumes.adapters_token(engine, location) is not None:
        return {"HF_TOKEN_PATH": {"name": "HF_TOKEN_PATH", "value": volumes.HUB_TOKEN_PATH}}
    draft, fetched, token = (
        engine.speculative.model,
        location.download,
        location.token_secret,
    )
    if fetched is not None and draft is not None and not draft.startswith("/"):
        token = fetched.token_secret
    if token is None:
        return {}
    reference = {"secretKeyRef": {"name": token[0], "key": token[1]}}
    return {"HF_TOKEN": {"name": "HF_TOKEN", "valueFrom": reference}}


def _resources(engine: EngineOptions, accelerator: Accelerator, pods: PodsPlan) -> dict[str, Any]:
    if accelerator.memory_bytes is not None and accelerator.type == "cpu":
        memory = memory_quantity(accelerator.memory_bytes)
        return {"requests": {"cpu": _CPU_REQUEST, "memory": memory}, "limits": {"memory": memory}}
    copies = engine.copies_per_pod
    gib = constants.GPU_HOST_GIB * copies + math.ceil(pods.host_bytes / 2**30)
    host = {"cpu": str(_GPU_HOST_CORES * copies), "memory": f"{gib}Gi"}
    devices, claims = devices_of_container(engine, accelerator)
    limits = {"limits": devices} if devices else {}
    return {"requests": {**host, **devices}, **limits, **claims}


def _startup_probe(accelerator: Accelerator, rollout: RolloutPlan) -> dict[str, Any]:
    period = _STARTUP_PERIOD_SECONDS[accelerator.type]
    failures = math.ceil(rollout.startup_budget_seconds / period)
    return {**http_probe("/startup", period), "failureThreshold": failures}


def http_probe(path: str, period_seconds: int) -> dict[str, Any]:
    """Ask a path of the server every so often."""
    return {
        "httpGet": {"path": path, "port": constants.ENGINE_PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
    }
