"""Values of the engine's configuration: the options as given, and the parts of the final `Config`.

Torch-free and frozen. `atom.sizing.options` declares the options, part by part. A part of `Config`
is the options' part itself, or extends it with the values that `atom.config` derives.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atom.eplb_config import EPLBConfig
from atom.errors import ConfigError
from atom.kv_events_config import KVEventsConfig
from atom.kv_transfer_config.values import KVTransferConfig
from atom.lora_config import LoraConfig
from atom.pooling_config import PoolingConfig
from atom.sizing.host_tier import GIB
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.beside_encoder import EncoderOptions
from atom.sizing.options.beside_transfer import BesideTransfer, transfer_problems
from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.execution import ExecutionOptions, SleepOptions
from atom.sizing.options.images import ImageOptions
from atom.sizing.options.kv_tiers import KVTierOptions
from atom.sizing.options.model import CheckpointOptions, ModelOptions
from atom.sizing.options.option import sorted_into
from atom.sizing.options.parallelism import HealthOptions, NodePlace, ParallelOptions
from atom.sizing.options.scheduling import SchedulerOptions
from atom.sizing.reproducibility import ReproducibleOptions
from atom.speculative_config import SpeculativeConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options that the user gives, in parts. speculative: how tokens are drafted; lora: the
    adapters; balance: how experts are rebalanced; kv_events: where events of cached blocks are
    published; kv_transfer: how KV pages are exchanged with other engines; None for none."""

    checkpoint: CheckpointOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    tier: KVTierOptions = field(default_factory=KVTierOptions)
    sleep: SleepOptions = field(default_factory=SleepOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    images: ImageOptions = field(default_factory=ImageOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    nodes: NodePlace = field(default_factory=NodePlace)
    health: HealthOptions = field(default_factory=HealthOptions)
    speculative: SpeculativeConfig | None = None
    lora: LoraConfig | None = None
    balance: EPLBConfig | None = None
    kv_events: KVEventsConfig | None = None
    kv_transfer: KVTransferConfig | None = None

    @staticmethod
    def of(**values: Any) -> EngineOptions:
        """Sort options by their keywords into parts, such as max_num_seqs. Raises `TypeError` for a
        keyword that no option has."""
        parts: dict[str, Any] = {}
        for name, kind in typing.get_type_hints(EngineOptions).items():
            if not isinstance(kind, type):  # built already, or None
                if name in values:
                    parts[name] = values.pop(name)
                continue
            parts[name] = sorted_into(kind, values)
        if values:
            raise TypeError(
                f"unknown options {', '.join(sorted(values))}; the options are the flags of atom "
                "serve, with underscores"
            )
        return EngineOptions(**parts)

    def beside_reproducible(self) -> ReproducibleOptions:
        """Return the options that reproducible answers restrict."""
        by_layer = None if self.model.online_quant_config is None else "quantised"
        execution, parallel = self.execution, self.parallel
        return ReproducibleOptions(
            quantization=self.model.quantization or by_layer,
            names_backends=execution.backend != "auto" or bool(execution.op_backends),
            lora=self.lora is not None,
            expert_parallel=parallel.expert_parallel or parallel.dp_attention,
            kv_cache_dtype=self.cache.kv_cache_dtype,
        )

    def beside_encoder(self, max_model_len: int) -> EncoderOptions:
        """Return the options that encoders restrict, at this context length."""
        return EncoderOptions(
            max_model_len=max_model_len,
            step_tokens=self.scheduler.max_num_batched_tokens,
            chunk_tokens=self.scheduler.long_prefill_token_threshold,
            lora=self.lora is not None,
            page_options=tuple(
                name
                for name, is_set in (
                    ("kv_events_config", self.kv_events is not None),
                    ("kv_offloading_size", self.tier.offloading_size is not None),
                )
                if is_set
            ),
            speculation=self.speculative is not None,
        )

    def beside_fallback(self, model: ModelConfig) -> dict[str, str]:
        """Return the options that a model without a family refuses, as far as they are set, with
        their names."""
        asked = {
            "data_parallel_size": self.parallel.data_parallel_size > 1,
            "enable_lora": self.lora is not None,
            "enable_sleep_mode": self.sleep.enabled,
            "kv_cache_dtype": self.cache.kv_cache_dtype == "fp8",
            "kv_offloading_size": self.tier.offloading_size is not None,
            "kv_transfer_config": self.kv_transfer is not None,
            "reproducible": self.execution.reproducible,
            "runner": model.pooling is not None,
            "speculative_config": self.speculative is not None,
        }
        return {name: name for name, is_set in asked.items() if is_set}

    def transfer_problems(self, model: ModelConfig) -> list[str]:
        """Return why an engine with these options cannot exchange KV pages, if it is to."""
        parallel = self.parallel
        if self.kv_transfer is None:
            return []
        beside = BesideTransfer(
            prefix_caching=self.cache.enable_prefix_caching,
            pools=model.pooling is not None,
            tensor_parallel=parallel.tensor_parallel_size,
            nodes=self.nodes.count,
            shares_experts=parallel.dp_attention,
            by_layers=self.speculative is not None and self.speculative.by_layers,
            may_sleep=self.sleep.enabled,
        )
        return list(transfer_problems(beside))


def extended(kind: type[T], part: Any, **derived: Any) -> T:
    """Return a part of the options as `kind`, a subclass of it with derived values."""
    return kind(**{each.name: getattr(part, each.name) for each in fields(part)}, **derived)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling defaults of the checkpoint's generation_config.json; None for a missing one."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


GENERATION_FIELDS = tuple(field.name for field in fields(GenerationDefaults))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The served model, with the facts of its checkpoint. max_model_len: most tokens of prompt and
    answer together. dtype: "auto" or a torch name. tokenizer_path: the folder with the tokenizer,
    which is `path` unless the user gives another. pooling: the result for a prompt, None for a
    model that generates tokens. max_images: most images of a prompt, 0 for a model of text;
    max_image_run: most neighbouring tokens of an image that see each other both ways."""

    path: Path
    served_name: str
    architecture: str
    hf_config: dict[str, Any]
    facts: ModelFacts
    dtype: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    generation: GenerationDefaults
    load_dummy: bool
    tokenizer_path: Path
    pooling: PoolingConfig | None = None
    max_images: int = 0
    max_image_run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig(CacheOptions):
    """Settings of the paged KV cache. kv_events: where events of cached blocks are published for
    routers, None for no events. kv_transfer: how pages are exchanged with other engines, None for
    not at all."""

    kv_events: KVEventsConfig | None = None
    kv_transfer: KVTransferConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(SchedulerOptions):
    """Limits and policies of the scheduler. num_speculative_tokens: drafts per sequence and step
    for which blocks are reserved. max_loras: adapters that are on the device at once.
    divides_prompts: several steps may compute a prompt; False for encoders."""

    num_speculative_tokens: int = 0
    max_loras: int = 0
    divides_prompts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig(ParallelOptions):
    """Ranks of data, tensor and expert parallelism. data_parallel_rank: the rank of a core process;
    other processes ignore it. tensor_parallel_rank: the rank of a runner's process among those that
    share a copy of the model. balance: how experts are rebalanced, None for never."""

    data_parallel_rank: int = 0
    tensor_parallel_rank: int = 0
    balance: EPLBConfig | None = None
    nodes: NodePlace = field(default_factory=NodePlace)

    @property
    def shares_experts(self) -> bool:
        """Return whether ranks of data parallelism compute each other's experts."""
        return self.expert_parallel and self.data_parallel_size > 1

    @property
    def spans_cores(self) -> bool:
        """Return whether the ranks of data parallelism are on several nodes."""
        return self.shares_experts and self.nodes.count > 1

    @property
    def expert_ranks(self) -> int:
        """Return the number of ranks that divide the experts as wholes; 1 without expert
        parallelism."""
        return self.data_parallel_size * self.tensor_parallel_size if self.expert_parallel else 1

    @property
    def ranks_per_node(self) -> int:
        """Return the number of ranks on each node, of the ranks that are divided over nodes: those
        that share experts and have their own tokens, or else those that share a copy of the
        model."""
        size = self.data_parallel_size if self.shares_experts else self.tensor_parallel_size
        return size // self.nodes.count

    @property
    def ranks_here(self) -> range:
        """Return which of them are on this node."""
        return self.ranks_of(self.nodes.rank)

    def ranks_of(self, node: int) -> range:
        """Return which of them are on that node."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)


class OpenRequestsMode(StrEnum):
    """The treatment of open requests when the engine sleeps or takes other weights. WAIT: they
    complete first, and new requests wait; ABORT: they end with 503; KEEP: they are preempted, and
    continue with the new weights once the engine computes again, which recomputes their tokens so
    far."""

    WAIT = "wait"
    ABORT = "abort"
    KEEP = "keep"


class SleepLevel(IntEnum):
    """The depths of sleep, by vLLM's numbers. Both release the KV cache. WEIGHTS_ON_HOST: weights
    wait in the host's memory; NO_WEIGHTS: they are read again."""

    WEIGHTS_ON_HOST = 1
    NO_WEIGHTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration of an engine. speculative: how tokens are drafted; None for no
    drafts. draft: the draft checkpoint, if there is a separate one. lora: the adapters; None for
    none. sleep: whether the device may be lent to other processes. tier: of the KV cache, below the
    device. images: of prompts, if `model.facts.vision` reads them."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    execution: ExecutionOptions
    seed: int
    speculative: SpeculativeConfig | None = None
    draft: ModelConfig | None = None
    lora: LoraConfig | None = None
    images: ImageOptions = field(default_factory=ImageOptions)
    sleep: SleepOptions = field(default_factory=SleepOptions)
    health: HealthOptions = field(default_factory=HealthOptions)
    tier: KVTierOptions = field(default_factory=KVTierOptions)

    @property
    def tier_bytes(self) -> int:
        """Return the bytes of the host's tier of the KV cache of one copy of the model; 0 without
        one."""
        size = self.tier.offloading_size or 0.0
        return int(size * GIB) // self.parallel.data_parallel_size

    def with_max_num_seqs(self, count: int) -> Config:
        """Return a copy of the configuration with this limit of concurrent sequences."""
        return replace(self, scheduler=replace(self.scheduler, max_num_seqs=count))

    def with_weights(self, path: str) -> Config:
        """Return a copy of the configuration with the weights of another checkpoint of the same
        shape."""
        return replace(self, model=replace(self.model, path=Path(path)))

    def to_json(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @staticmethod
    def from_json(data: bytes) -> Config:
        return msgspec.json.decode(data, type=Config, dec_hook=lambda kind, value: kind(value))


def check_tiers(tier: KVTierOptions, *, caches: bool, nodes: int) -> None:
    """Raise `ConfigError` for a tier of the KV cache that would stay empty. caches: prefixes are
    cached; nodes: over which the ranks are spread."""
    _check_files(tier)
    if tier.offloading_size is None:
        return
    if not caches:
        raise ConfigError(
            "--kv-offloading-size keeps blocks that the prefix cache finds, and prefix caching is "
            "off; drop one"
        )
    if nodes > 1:
        raise ConfigError(
            "--kv-offloading-size: ranks over several nodes share no memory of a host; leave it "
            "out, or use one node"
        )


def _check_files(tier: KVTierOptions) -> None:
    """Raise `ConfigError` for files of the KV cache without a folder, a size, or a host's tier."""
    if tier.disk_dir is None and tier.disk_size is None:
        return
    if tier.disk_dir is None or tier.disk_size is None:
        given, missing = "--kv-disk-dir", "--kv-disk-size"
        if tier.disk_dir is None:
            given, missing = missing, given
        raise ConfigError(f"{given} is for a tier in files, which needs {missing} too; add it")
    if tier.offloading_size is None:
        raise ConfigError(
            "--kv-disk-dir: files are read and written through the host's memory; add "
            "--kv-offloading-size"
        )
