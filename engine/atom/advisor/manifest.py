"""The AtomDeployment of a row: what `kubectl apply` takes. Pure; a value of plain types."""

from __future__ import annotations

import re
from typing import Any

from atom.advisor.accelerator import API_VERSION, KIND, accelerator_of
from atom.advisor.engine_form import MIB
from atom.advisor.extras import Drafts
from atom.advisor.rows import Row
from atom.sizing.host_tier import GIB
from atom.sizing.options.scheduling import SchedulerOptions

_MOST_NAME = 40


def manifest(row: Row) -> dict[str, Any]:
    """Build the object. Fields at the operator's defaults are left out."""
    candidate = row.candidate
    spec: dict[str, Any] = {"model": _model(row), "engine": _engine(row)}
    parallelism = {"tensor": candidate.ranks, "data": row.copies}
    chosen = {name: value for name, value in parallelism.items() if value > 1}
    if chosen:
        spec["parallelism"] = chosen
    spec["replicas"] = row.pods - row.prefills
    if row.prefills:
        spec["disaggregation"] = {"prefill": {"replicas": row.prefills}}
    if candidate.host_bytes:
        spec["cache"] = {"kv": _tiers(row)}
    spec["accelerator"] = accelerator_of(candidate.card, candidate.ranks * row.copies)
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


def _tiers(row: Row) -> dict[str, Any]:
    """Return the tiers of a pod, whose copies have a share each."""
    form = row.candidate.form
    tiers: dict[str, Any] = {"hostMemory": _size(row.candidate.host_bytes * row.copies)}
    if form.file_bytes:
        tiers["disk"] = {"size": _size(form.file_bytes * row.copies)}
    return tiers


def _size(size_bytes: int) -> str:
    """Write a size as a quantity of Kubernetes, in whole GiB or else MiB."""
    whole, rest = divmod(size_bytes, GIB)
    return f"{-(-size_bytes // MIB)}Mi" if rest else f"{whole}Gi"


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
    drafts, adapters = row.candidate.form.drafts, row.candidate.form.adapters
    if drafts is not None:
        engine["speculative"] = _speculative(drafts)
    if adapters is not None:
        engine["lora"] = {
            "maxLoras": adapters.slots,
            "maxLoraRank": adapters.rank,
            "maxCpuLoras": adapters.on_host,
        }
    return engine


def _speculative(drafts: Drafts) -> dict[str, Any]:
    found: dict[str, Any] = {"method": drafts.method, "tokens": drafts.tokens}
    if drafts.model is not None:
        found["draftModel"] = drafts.model
        found["draftConfig"] = dict(drafts.config)
    return found
