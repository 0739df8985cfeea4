"""The EndpointPickerConfig of the picker that we run: the scores of a pod, and their weights. Pure.

llm-d's picker knows each engine's cache from its events, and asks the model's own Service for a
prompt's tokens. The Inference Extension's, and llm-d's if events cannot be read, scores by the
prompts that it has sent to each pod.
"""

from __future__ import annotations

from typing import Any

import yaml

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.endpoint_picker.cache_events import reads_events
from atom_operator.domain import EngineOptions, ObjectKey, Plan
from atom_operator.integration_values import PickerKind, PickerProgram

_QUEUED = "atom:requests_waiting"
_RUNNING = "atom:requests_running"
_CACHE_USED = "atom:kv_cache_usage_ratio"
_CACHE_SIZE = "atom:cache_config_info"
_API = {
    PickerKind.LLM_D: "llm-d.ai/v1alpha1",
    PickerKind.INFERENCE_EXTENSION: "inference.networking.x-k8s.io/v1alpha1",
}
# A cached beginning outweighs a queue, or a full cache, and not both.
_PREFIX, _QUEUE, _CACHE = 3, 2, 2
_EVENTS = "precise-prefix-cache-producer"
_METRICS = "metrics-data-source"
_METRICS_READER = "core-metrics-extractor"
_PODS = "endpoint-notification-source"


def picker_flags(program: PickerProgram) -> list[str]:
    """Name our metrics to pickers that take them as flags; llm-d's has them in its file."""
    if program.kind is PickerKind.LLM_D:
        return []
    return [
        f"--total-queued-requests-metric={_QUEUED}",
        f"--total-running-requests-metric={_RUNNING}",
        f"--kv-cache-usage-percentage-metric={_CACHE_USED}",
        f"--cache-info-metric={_CACHE_SIZE}",
        "--lora-info-metric=",
    ]


def config_text(plan: Plan, program: PickerProgram) -> str:
    """Return the file, in YAML."""
    scorers = {
        "prefix-cache-scorer": _PREFIX,
        "queue-scorer": _QUEUE,
        "kv-cache-utilization-scorer": _CACHE,
    }
    plugins: list[dict[str, Any]] = [{"type": scorer} for scorer in scorers]
    config: dict[str, Any] = {"apiVersion": _API[program.kind], "kind": "EndpointPickerConfig"}
    if program.kind is PickerKind.LLM_D:
        sources = {_METRICS: _METRICS_READER}
        plugins += [{"type": _METRICS}, {"type": _METRICS_READER, "parameters": _metric_names()}]
        if reads_events(plan.engine, plan.integrations):
            sources[_PODS] = _EVENTS
            plugins[0]["parameters"] = {"prefixMatchInfoProducerName": _EVENTS}
            plugins += [
                _tokens(plan.identity.key, plan.engine),
                {"type": _PODS},
                _events(plan.engine),
            ]
        config["dataLayer"] = {
            "sources": [
                {"pluginRef": source, "extractors": [{"pluginRef": reader}]}
                for source, reader in sources.items()
            ]
        }
    profile = [{"pluginRef": scorer, "weight": weight} for scorer, weight in scorers.items()]
    config["plugins"] = plugins
    config["schedulingProfiles"] = [{"name": "default", "plugins": profile}]
    return yaml.safe_dump(config, sort_keys=False)


def _metric_names() -> dict[str, Any]:
    engine = {
        "name": "atom",
        "queuedRequestsSpec": _QUEUED,
        "runningRequestsSpec": _RUNNING,
        "kvUsageSpec": _CACHE_USED,
        "cacheInfoSpec": _CACHE_SIZE,
    }
    return {"defaultEngine": "atom", "engineConfigs": [engine]}


def _tokens(key: ObjectKey, engine: EngineOptions) -> dict[str, Any]:
    """Return the part that asks an engine which tokens a prompt has."""
    where = {
        "modelName": engine.serving.served_name,
        "vllm": {"url": naming.service_url(key)},
    }
    return {"type": "token-producer", "parameters": where}


def _events(engine: EngineOptions) -> dict[str, Any]:
    """Return the settings for reading the engines' events. Between a choice and the event of the
    blocks that it caches, the choice itself counts (speculativeIndexing)."""
    ports = {
        "socketPort": constants.KV_EVENTS_PORT,
        "replaySocketPort": constants.KV_EVENTS_REPLAY_PORT,
    }
    parameters = {
        "tokenProcessorConfig": {"blockSize": engine.cache.block_size},
        "kvEventsConfig": {
            "topicFilter": "kv@",
            "discoverPods": True,
            "podDiscoveryConfig": ports,
        },
        "speculativeIndexing": True,
    }
    return {"type": _EVENTS, "parameters": parameters}
