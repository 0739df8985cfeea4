"""The AtomDeployment of a row: what `kubectl apply` takes. Pure; a value of plain types."""

from __future__ import annotations

import re
from typing import Any

from atom.advisor.advice import Row
from atom.sizing.cards import Vendor
from atom.sizing.options.scheduling import SchedulerOptions

API_VERSION, KIND = "serving.atom.dev/v1alpha1", "AtomDeployment"
_NVIDIA_RESOURCE = "nvidia.com/gpu"
_MOST_NAME = 40
_GIB = 1024**3


def manifest(row: Row) -> dict[str, Any]:
    """Build the object. Fields at the operator's defaults are left out."""
    candidate = row.candidate
    spec: dict[str, Any] = {"model": _model(row), "engine": _engine(row)}
    parallelism = {"tensor": candidate.ranks, "data": row.copies}
    chosen = {name: value for name, value in parallelism.items() if value > 1}
    if chosen:
        spec["parallelism"] = chosen
    spec["replicas"] = row.pods
    spec["accelerator"] = _accelerator(row)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": object_name(candidate.model.source)},
        "spec": spec,
    }


def object_name(source: str) -> str:
    """Return a name that Kubernetes takes, from the last part of a model's source."""
    last = source.rstrip("/").rpartition("/")[2].rpartition(":")[0] or source.rpartition("/")[2]
    name = re.sub(r"[^a-z0-9-]+", "-", last.lower()).strip("-")[:_MOST_NAME].strip("-")
    return name if name and name[0].isalpha() else f"model-{name}".strip("-")


def _model(row: Row) -> dict[str, Any]:
    model = row.candidate.model
    found: dict[str, Any] = {"source": model.source}
    if model.config:
        found["config"] = dict(model.config)
    return found


def _engine(row: Row) -> dict[str, Any]:
    limits, facts = row.candidate.form.limits, row.candidate.model.facts
    engine: dict[str, Any] = {}
    if limits.max_model_len != facts.max_position_embeddings:
        engine["maxModelLen"] = limits.max_model_len
    if limits.max_num_seqs != SchedulerOptions().max_num_seqs:
        engine["maxNumSeqs"] = limits.max_num_seqs
    if row.candidate.model.quantization is not None:
        engine["extraArgs"] = ["--quantization", row.candidate.model.quantization]
    return engine


def _accelerator(row: Row) -> dict[str, Any]:
    card = row.candidate.card
    if card.vendor is Vendor.AMD:
        return {"type": "amd", "product": card.name}
    if card.vendor is Vendor.NVIDIA:
        memory = f"{card.memory_bytes // _GIB}Gi"
        return {"type": "amd", "resourceName": _NVIDIA_RESOURCE, "memory": memory}
    return {"type": "cpu", "memory": f"{card.memory_bytes // _GIB}Gi"}
