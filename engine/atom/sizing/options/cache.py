"""Options of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.options.flag_values import (
    KV_CACHE_DTYPE,
    KV_CACHE_DTYPES,
    kv_cache_dtype,
    share,
)
from atom.sizing.options.option import CrdField, Flag, Range, option


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Settings of the paged KV cache. block_size: tokens per KV block. num_kv_blocks: None to size
    from memory."""

    block_size: int = option(
        16,
        "tokens per KV block",
        flag=Flag(metavar="N"),
        within=Range(1, step=16),
        crd=CrdField(
            "engine.blockSize",
            "Tokens per KV cache block: 1 or a multiple of 16; default: {default}.",
            most=1024,
            stated=True,
        ),
    )
    num_kv_blocks: int | None = option(
        None, "KV blocks (default: what memory allows)", within=Range(1)
    )
    gpu_memory_utilization: float = option(
        0.9,
        "share of the device's memory to use",
        flag=Flag(metavar="NUMBER", read=share),
        within=Range(0, 1, above=True),
        crd=CrdField(
            "engine.gpuMemoryUtilization",
            "Share of the device's memory (on cpu: of accelerator.memory) that the engine may use; "
            "greater than 0 and at most 1, default {default}.",
            stated=True,
        ),
    )
    kv_cache_dtype: str = option(
        "auto",
        "type of the KV cache; auto is the model's",
        flag=Flag(metavar=f"{{{','.join(KV_CACHE_DTYPES)}}}", read=kv_cache_dtype),
        within=KV_CACHE_DTYPE,
        crd=CrdField(
            "engine.kvCacheDtype",
            "Element type of the KV cache; auto is the type that the model computes in: its own on "
            "a GPU, fp32 on cpu. fp8 has a float32 scale per token and head. Default: {default}.",
            stated=True,
        ),
    )
    enable_prefix_caching: bool = option(
        True,
        "reuse the KV cache of equal prompt beginnings",
        crd=CrdField(
            "engine.prefixCaching",
            "Reuse the KV cache of common prompt prefixes; default: {default}.",
            stated=True,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferFlags:
    """The flags of `KVTransferConfig`. kv_transfer_config: a JSON document."""

    kv_transfer_config: str | None = option(
        None,
        "exchange KV pages with other engines, so that one computes prompts and another answers: "
        '{"kv_role": "kv_producer"}, "kv_consumer" or "kv_both"; also kv_connector, engine_id, '
        "kv_load_failure_policy (recompute or fail) and kv_connector_extra_config with "
        "side_channel_host, side_channel_port, kv_lease_duration, kv_recompute_threshold and "
        "allowed_networks; or, with OffloadingConnector or SimpleCPUOffloadConnector, a tier in "
        "the host's memory: cpu_bytes_to_use and eviction_policy set --kv-offloading-size and "
        "--kv-offload-policy",
        flag=Flag(metavar="JSON"),
    )
    kv_transfer_timeout: float = option(
        20.0,
        "seconds that a request waits for KV pages of another engine before its prompt is computed "
        "here",
        flag=Flag(metavar="SECONDS"),
        within=Range(0, above=True),
    )
    kv_transfer_max_held_fraction: float = option(
        0.5,
        "share of the KV cache that pages kept for other engines, or awaited from them, may take",
        flag=Flag(metavar="NUMBER"),
        within=Range(0, 1, above=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsFlags:
    """The flag of `KVEventsConfig`. kv_events_config: a JSON document."""

    kv_events_config: str | None = option(
        None,
        "report the cached blocks to routers over ZMQ, such as "
        '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": '
        '"tcp://*:5558"}, without an endpoint for this machine alone; also topic, '
        "buffer_steps, hwm and max_queue_size",
        flag=Flag(metavar="JSON"),
    )
