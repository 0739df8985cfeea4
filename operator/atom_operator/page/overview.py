"""What the operator's page shows, out of objects of the cluster. Pure; judges nothing that the
operator has not judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atom_operator.domain import Capacity, Manifest
from atom_operator.memory_bar import memory_parts
from atom_operator.plugin.gpus_view import gpu_document
from atom_operator.plugin.status_view import NEGATIVE, NEUTRAL
from atom_operator.sizes import size_text

_ANSWERS = {"True": "yes", "False": "no"}
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def overview(
    deployments: Sequence[tuple[Manifest, Capacity | None]],
    nodes: Sequence[Manifest] | None,
    pods: Sequence[Manifest],
) -> dict[str, Any]:
    """Build the page's document. deployments: each with one replica's capacity, if a plan knows it;
    nodes: None if the operator may not read them."""
    return {
        "deployments": [_deployment(manifest, held) for manifest, held in deployments],
        "nodes": None if nodes is None else gpu_document(nodes, pods),
    }


def _deployment(manifest: Manifest, capacity: Capacity | None) -> dict[str, Any]:
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    status = manifest.get("status") or {}
    conditions = status.get("conditions") or ()
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "model": (spec.get("model") or {}).get("source", ""),
        "ready": any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        "replicas": f"{status.get('readyReplicas', 0)} of {status.get('replicas', 0)} pods serve",
        "conditions": [_sentence(condition) for condition in conditions],
        "rollout": _rollout(status.get("rollout")),
        "memory": _memory(capacity),
    }


def _sentence(condition: Mapping[str, Any]) -> dict[str, Any]:
    """Phrase a condition for people, with whether it is good."""
    kind, state = str(condition["type"]), str(condition["status"])
    words = _WORDS.sub(" ", kind).capitalize()
    message = str(condition.get("message") or condition["reason"])
    good = None
    if state in _ANSWERS and kind not in NEUTRAL:
        good = (state == "True") != (kind in NEGATIVE)
    if message.split(" ")[0].isalpha():  # else a number, or a field's name
        message = f"{message[:1].upper()}{message[1:]}"
    text = f"{words}: {_ANSWERS.get(state, 'unknown')}. {message}"
    return {"text": text, "good": good}


def _rollout(rollout: Mapping[str, Any] | None) -> str | None:
    if not rollout:
        return None
    counts = f"{rollout.get('updated', 0)} of the newest revision, {rollout.get('ready', 0)} serve"
    return f"{rollout['strategy']}: {rollout['reason']} ({counts})"


def _memory(capacity: Capacity | None) -> dict[str, Any] | None:
    parts = memory_parts(capacity)
    if not parts or capacity is None:
        return None
    return {
        "total": size_text(capacity.device.total_bytes),
        "tokens": capacity.kv_tokens,
        "parts": [
            {"name": part.name, "bytes": part.size_bytes, "size": size_text(part.size_bytes)}
            for part in parts
        ],
    }
