"""Settings of engine pods for an endpoint picker that reads their cache events: flag, ports,
labels.

Names and numbers are llm-d's: it finds a pod's events by the port, and takes the topics that begin
with kv@. Pure; rendered only if a picker of ours reads the events.
"""

from __future__ import annotations

import json
from typing import Any

from atom_operator import constants
from atom_operator.domain import EngineOptions
from atom_operator.integration_values import Integrations, PickerKind

_POD_NAME = "POD_NAME"
_LABELS = {
    "llm-d.ai/inference-serving": "true",
    "llm-d.ai/engine-type": "atom",
    "inference.networking.k8s.io/engine-type": "atom",
}


def reads_events(engine: EngineOptions, integrations: Integrations) -> bool:
    """Return whether the picker knows a replica's whole cache from its events: it asks the engine
    for a prompt's tokens, without a key, and follows only the first copy of a model in a pod.
    Otherwise it scores by the prompts that it has sent."""
    program = integrations.picker_program
    return (
        program is not None
        and program.kind is PickerKind.LLM_D
        and engine.serving.api_key_secret is None
        and engine.data_parallel == 1
    )


def event_arguments(engine: EngineOptions, integrations: Integrations) -> list[str]:
    """Return the engine's flag."""
    if not reads_events(engine, integrations):
        return []
    config = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://*:{constants.KV_EVENTS_PORT}",
        "replay_endpoint": f"tcp://*:{constants.KV_EVENTS_REPLAY_PORT}",
        "topic": f"kv@$({_POD_NAME})@{engine.serving.served_name}",
    }
    return ["--kv-events-config", json.dumps(config)]


def event_environment(
    engine: EngineOptions, integrations: Integrations
) -> dict[str, dict[str, Any]]:
    """Return the pod's name, which its topic has."""
    if not reads_events(engine, integrations):
        return {}
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    return {_POD_NAME: {"name": _POD_NAME, "valueFrom": source}}


def event_ports(engine: EngineOptions, integrations: Integrations) -> dict[str, int]:
    """Return the container's ports beside HTTP's."""
    if not reads_events(engine, integrations):
        return {}
    return {
        "kv-events": constants.KV_EVENTS_PORT,
        "kv-replay": constants.KV_EVENTS_REPLAY_PORT,
    }


def picked_labels(integrations: Integrations) -> dict[str, str]:
    """Return the pods' labels by which pickers identify engines and their metrics."""
    return dict(_LABELS) if integrations.picker_program is not None else {}
