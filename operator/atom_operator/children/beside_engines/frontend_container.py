"""The container of a server without an engine: the engine's, except devices and computing. Pure.

Its command line has the engine's flags that the server of a request reads: model, names, lengths,
images, deadlines, adapters, keys, and those of extraArgs about templates and parsers. Flags of the
engine alone are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atom_operator import constants
from atom_operator.children import naming, volumes
from atom_operator.children.endpoint_picker.cache_events import event_environment
from atom_operator.children.engine_container import COMMAND, http_probe, lora_arguments
from atom_operator.children.leader_worker_set import group_environment
from atom_operator.children.option_arguments import changed_options
from atom_operator.domain import ObjectKey, Plan
from atom_operator.integration_values import Frontend

# Of extraArgs: a server with workers refuses them.
_OF_ENGINES_ALONE = frozenset(
    {
        "api-server-count",
        "enable-sleep-mode",
        "sleep-queue",
        "enable-eplb",
        "eplb-config",
        "expert-exchange",
    }
)
_CPU_REQUEST = "500m"
_CPU_LIMIT, _MEMORY_LIMIT = "4", "4Gi"  # quotas and policies of many namespaces want limits
_MOUNTS_OF_ENGINES = ("shm", "compile-cache", "kv-cache")
# Options that the server of a request reads, whether or not it computes.
_READ_BY_SERVERS = frozenset({"deadline_ms", "deadline_action", "reproducible", "max_images"})
_START_PERIOD_SECONDS, _START_FAILURES = 2, 300


def frontend_container(plan: Plan, engine: Mapping[str, Any], wanted: Frontend) -> dict[str, Any]:
    """Render the container, made from the engine's with its overlay."""
    port = {
        "name": constants.ENGINE_PORT_NAME,
        "containerPort": constants.ENGINE_PORT,
        "protocol": "TCP",
    }
    foreign = {*group_environment(plan.engine), *event_environment(plan.engine, plan.integrations)}
    kept = ("image", "imagePullPolicy", "envFrom", "lifecycle", "securityContext")
    return {
        **{key: engine[key] for key in kept if key in engine},
        "name": constants.FRONTEND_COMPONENT,
        "command": list(COMMAND),
        "args": frontend_args(plan),
        "env": [item for item in engine.get("env") or () if item["name"] not in foreign],
        "ports": [port],
        "resources": _resources(wanted),
        "volumeMounts": [
            mount
            for mount in engine.get("volumeMounts") or ()
            if mount["name"] not in _MOUNTS_OF_ENGINES
        ],
        # Without a worker it lives, and takes no requests.
        "startupProbe": {
            **http_probe("/live", _START_PERIOD_SECONDS),
            "failureThreshold": _START_FAILURES,
        },
        "readinessProbe": {**http_probe("/health", 2), "failureThreshold": 2},
        "livenessProbe": {**http_probe("/live", 10), "failureThreshold": 3},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def frontend_args(plan: Plan) -> list[str]:
    """Render the command line."""
    engine = plan.engine
    pairs: list[tuple[str, object]] = [
        ("--model", plan.model.location.argument),
        ("--served-model-name", engine.serving.served_name),
        ("--host", "::"),
        ("--server-port", constants.ENGINE_PORT),
        ("--max-model-len", engine.model.max_model_len),
        ("--revision", plan.model.location.revision),
        ("--drain-seconds", engine.serving.drain_seconds),
    ]
    args = [text for flag, value in pairs if value is not None for text in (flag, str(value))]
    args.extend(changed_options(engine, _READ_BY_SERVERS))
    args.extend(["--worker-urls", *_workers(plan)])
    transfer = engine.serving.transfer
    if transfer is not None and transfer.least_tokens is not None:
        args.extend(["--prefill-least-tokens", str(transfer.least_tokens)])
    if engine.serving.api_key_secret is not None:
        args.extend(["--api-key-file", volumes.API_KEY_PATH])
    args.extend(volumes.peer_arguments(plan.engine, plan.integrations))
    args.extend(lora_arguments(engine))
    return [*args, *_without_engines_own(engine.serving.extra_args)]


def _workers(plan: Plan) -> Iterator[str]:
    """Yield the addresses of the pods that answer, and of those that compute prompts for them."""
    key = plan.identity.key
    yield naming.workers_url(key)
    if plan.engine.serving.transfer is not None:
        yield naming.workers_url(ObjectKey(key.namespace, naming.prefill_name(key)))


def _without_engines_own(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, but for flags of engines alone and the values behind them."""
    is_kept = True
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--").partition("=")[0].replace("_", "-")
            is_kept = name not in _OF_ENGINES_ALONE
        if is_kept:
            yield word


def _resources(wanted: Frontend) -> dict[str, Any]:
    limit = wanted.memory if wanted.is_limited else _MEMORY_LIMIT
    return {
        "requests": {"cpu": _CPU_REQUEST, "memory": wanted.memory},
        "limits": {"cpu": _CPU_LIMIT, "memory": limit},
    }
