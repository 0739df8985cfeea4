"""Values of the engine's configuration: the options as given, and the parts of the final `Config`.

Torch-free and frozen. `atom.config` builds the configuration from the options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec

from atom.eplb_config import EPLBConfig
from atom.errors import ConfigError
from atom.kv_events_config import KVEventsConfig
from atom.lora_config import LoraConfig
from atom.pooling_config import Convert, PoolingConfig, Runner
from atom.sizing.model_facts import ModelFacts
from atom.sizing.reproducibility import ReproducibleOptions
from atom.speculative_config import SpeculativeConfig

SchedulingPolicy = Literal["mixed", "prefill_first"]
Fairness = Literal["clients", "off"]
RoutingPolicy = Literal["least_tokens", "round_robin"]
ExpertTransport = Literal["torch", "mori"]

LEAST_STALL_SECONDS = 2.0  # two heartbeats
KV_CACHE_DTYPES = ("auto", "bf16", "fp16", "fp32", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options that the user gives; the command line's help describes each one. None means that
    the engine derives the value."""

    model: str
    revision: str | None = None
    runner: Runner = "auto"
    convert: Convert = "auto"
    served_model_name: str | None = None
    tokenizer: str | None = None
    generation_config: str = "auto"
    override_generation_config: Mapping[str, Any] | None = None
    dtype: str = "auto"
    quantization: str | None = None
    online_quant_config: Mapping[str, Any] | None = None
    device: str = "auto"
    backend: str = "auto"
    op_backends: dict[str, str] = field(default_factory=dict)
    reproducible: bool = False
    load_dummy: bool = False
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 16384
    long_prefill_token_threshold: int = 0
    scheduling_policy: SchedulingPolicy = "mixed"
    scheduler_delay_factor: float = 0.0
    max_step_seconds: float = 0.3
    max_waiting_requests: int = 4096
    fairness: Fairness = "clients"
    client_weights: Mapping[str, float] = field(default_factory=dict)
    block_size: int = 16
    num_kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    kv_events: KVEventsConfig | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_routing: RoutingPolicy = "least_tokens"
    enable_expert_parallel: bool = False
    enable_dp_attention: bool = False
    expert_exchange: ExpertTransport = "torch"
    balance: EPLBConfig | None = None
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29_500
    stall_seconds: float = 120.0
    enforce_eager: bool = False
    torch_profiler_dir: str | None = None
    speculative: SpeculativeConfig | None = None
    lora: LoraConfig | None = None
    enable_sleep_mode: bool = False
    sleep_queue: bool = False
    sleep_idle_seconds: float | None = None

    def beside_reproducible(self) -> ReproducibleOptions:
        """Return the options that reproducible answers restrict."""
        by_layer = None if self.online_quant_config is None else "quantised"
        return ReproducibleOptions(
            quantization=self.quantization or by_layer,
            names_backends=self.backend != "auto" or bool(self.op_backends),
            lora=self.lora is not None,
            expert_parallel=self.enable_expert_parallel or self.enable_dp_attention,
            kv_cache_dtype=self.kv_cache_dtype,
        )


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
    model that generates tokens."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Settings of the paged KV cache. block_size: tokens per KV block. num_kv_blocks: None to size
    from memory. kv_events: where events of cached blocks are published for routers, None for no
    events."""

    block_size: int
    num_kv_blocks: int | None
    gpu_memory_utilization: float
    kv_cache_dtype: str
    enable_prefix_caching: bool
    kv_events: KVEventsConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and policies of the scheduler. long_prefill_token_threshold: most prompt tokens of one
    request per step; 0 for no bound. delay_factor: prefill_first waits this many prompt latencies
    to batch prompts; 0 never waits. max_step_seconds: of a step with prompts and decodes; 0 for no
    bound. max_waiting_requests: a server refuses further requests while this many have no token
    yet; 0 for no bound. num_speculative_tokens: drafts per sequence and step for which blocks are
    reserved. fairness: whose shares order the waiting requests; client_weights: of these shares, by
    the part of `Request.client_id` before or after its slash; 1 for every other. max_loras:
    adapters that are on the device at once."""

    policy: SchedulingPolicy
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    delay_factor: float
    max_step_seconds: float = 0.0
    max_waiting_requests: int = 0
    num_speculative_tokens: int = 0
    fairness: Fairness = "clients"
    client_weights: Mapping[str, float] = field(default_factory=dict)
    max_loras: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The place of this machine among the `count` nodes that share a model: a copy of it, or its
    experts. address, port: where the first node, of rank 0, waits for the others."""

    count: int = 1
    rank: int = 0
    address: str = "127.0.0.1"
    port: int = 29_500

    @staticmethod
    def of(options: EngineOptions) -> NodePlace:
        """Take the node's place from the options."""
        return NodePlace(
            count=options.nnodes,
            rank=options.node_rank,
            address=options.master_addr,
            port=options.master_port,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Ranks of data, tensor and expert parallelism. data_parallel_rank: the rank of a core process;
    other processes ignore it. tensor_parallel_rank: the rank of a runner's process among those that
    share a copy of the model. expert_parallel: each rank has whole experts, instead of a part of
    each expert. shares_experts: ranks of data parallelism, with their own tokens, share the
    experts; else ranks that share a copy of the model do. expert_exchange: the transport of few
    tokens to their experts; balance: how experts are rebalanced, None for never. stall_seconds: a
    rank that computes nothing for so long, with work or without, is unhealthy."""

    tensor_parallel_size: int
    data_parallel_size: int
    data_parallel_rank: int = 0
    tensor_parallel_rank: int = 0
    data_parallel_routing: RoutingPolicy = "least_tokens"
    stall_seconds: float = 120.0
    expert_parallel: bool = False
    expert_exchange: ExpertTransport = "torch"
    balance: EPLBConfig | None = None
    nodes: NodePlace = NodePlace()

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
class SleepConfig:
    """Settings of sleep mode, which lends the device to other processes. holds_requests: new
    requests wait for the engine to wake up; else they are refused. idle_seconds: time without a
    request after which the engine sleeps until the next request; None for never."""

    enabled: bool = False
    holds_requests: bool = False
    idle_seconds: float | None = None

    @staticmethod
    def of(options: EngineOptions) -> SleepConfig:
        """Derive the sleep configuration from the options. Raises `ConfigError`."""
        idle = options.sleep_idle_seconds
        asked = {"--sleep-queue": options.sleep_queue, "--sleep-idle-seconds": idle is not None}
        for flag, given in asked.items():
            if given and not options.enable_sleep_mode:
                raise ConfigError(
                    f"{flag} is for an engine that may sleep; give --enable-sleep-mode too, or "
                    "leave it out"
                )
        if idle is not None and not 0 < idle < math.inf:
            raise ConfigError(f"--sleep-idle-seconds must be more than 0, got {idle:g}")
        if options.enable_sleep_mode and options.enable_dp_attention:
            raise ConfigError(
                "--enable-sleep-mode: ranks that share experts (--enable-dp-attention) do not "
                "sleep; leave one of them out"
            )
        if options.enable_sleep_mode and options.nnodes > 1:
            raise ConfigError(
                "--enable-sleep-mode: an engine over several nodes does not sleep; leave it "
                "out, or use one node"
            )
        return SleepConfig(
            enabled=options.enable_sleep_mode,
            holds_requests=options.sleep_queue,
            idle_seconds=idle,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration of an engine. enforce_eager: no graphs. torch_profiler_dir: the
    folder for traces of the running engine; None for none. reproducible: a row's result never
    depends on the other rows of its step. speculative: how tokens are drafted; None for no drafts.
    draft: the draft checkpoint, if there is a separate one. lora: the adapters; None for none.
    sleep: whether the device may be lent to other processes."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    device: str
    backend: str
    op_backends: dict[str, str]
    enforce_eager: bool
    seed: int
    reproducible: bool = False
    torch_profiler_dir: str | None = None
    speculative: SpeculativeConfig | None = None
    draft: ModelConfig | None = None
    lora: LoraConfig | None = None
    sleep: SleepConfig = field(default_factory=SleepConfig)

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
