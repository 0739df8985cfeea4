"""Options of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.options.flag_values import KV_CACHE_DTYPE, KV_CACHE_DTYPES, kv_cache_dtype
from atom.sizing.options.option import Flag, Range, option


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Settings of the paged KV cache. block_size: tokens per KV block. num_kv_blocks: None to size
    from memory."""

    block_size: int = option(
        16, "tokens per KV block", flag=Flag(metavar="N"), within=Range(1, step=16)
    )
    num_kv_blocks: int | None = option(
        None, "KV blocks (default: what memory allows)", within=Range(1)
    )
    gpu_memory_utilization: float = option(
        0.9,
        "share of the device's memory to use",
        flag=Flag(metavar="NUMBER"),
        within=Range(0, 1, above=True),
    )
    kv_cache_dtype: str = option(
        "auto",
        "type of the KV cache; auto is the model's",
        flag=Flag(metavar=f"{{{','.join(KV_CACHE_DTYPES)}}}", read=kv_cache_dtype),
        within=KV_CACHE_DTYPE,
    )
    enable_prefix_caching: bool = option(True, "reuse the KV cache of equal prompt beginnings")


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
