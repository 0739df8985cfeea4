"""Flags of LoRA adapters, which `LoraConfig` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atom.sizing.options.option import CrdField, Flag, Range, option

DEFAULT_LORA_RANK = 16
_COUNT = Flag(metavar="N")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFlags:
    """The flags of `LoraConfig`; None for a flag that is not given."""

    enabled: bool = option(
        False,
        "serve LoRA adapters of the model: a request chooses one by its model",
        keyword="enable_lora",
        crd=CrdField("engine.lora"),
    )
    modules: Sequence[str] | None = option(
        None,
        "adapters by name, each a folder that PEFT has written or a hub id; also as JSON, "
        'such as {"name": "sql", "path": "/adapters/sql"}',
        keyword="lora_modules",
        flag=Flag(metavar="NAME=PATH", many="words"),
        crd=CrdField("adapters"),
    )
    max_loras: int | None = option(
        None,
        "most adapters on the device, and so in a step (default: 1)",
        flag=_COUNT,
        within=Range(1),
        # Enough of them that a list of adapters can grow without a rollout.
        crd=CrdField(
            "engine.lora.maxLoras",
            "Most adapters on the device, and so in a step; the plan reserves their memory. "
            "Default: {default}.",
            most=256,
            default=4,
        ),
    )
    max_rank: int | None = option(
        None,
        f"highest rank of an adapter's matrices (default: {DEFAULT_LORA_RANK})",
        keyword="max_lora_rank",
        flag=_COUNT,
        within=Range(1, 512),
        crd=CrdField(
            "engine.lora.maxLoraRank",
            "Highest rank of an adapter; the plan reserves memory for it. Default: {default}.",
            default=DEFAULT_LORA_RANK,
        ),
    )
    max_cpu_loras: int | None = option(
        None,
        "most adapters in the host's memory (default: --max-loras, or as many as "
        "--lora-modules names)",
        flag=_COUNT,
        within=Range(1),
        crd=CrdField(
            "engine.lora.maxCpuLoras",
            "Most adapters in the host's memory, and so in spec.adapters. Default: {default}, or "
            "maxLoras if that is more.",
            most=1024,
            default=16,
        ),
    )
    experts: bool = option(
        False,
        "make room for adapters of experts' matrices too, of a model that has experts",
        keyword="lora_experts",
        crd=CrdField(
            "engine.lora.experts",
            "Reserve memory for adapters of experts' matrices too, which need more memory than all "
            "other adapters. Default: {default}.",
        ),
    )
    may_load: bool = option(
        False,
        "let POST /v1/load_lora_adapter and /v1/unload_lora_adapter change the adapters",
        keyword="allow_runtime_lora_updating",
        crd=CrdField("adapters"),
    )
