"""Options of the tiers of the KV cache below the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atom.sizing.options.option import CrdField, Flag, Range, option

TierPolicy = Literal["lru", "protected"]
TierWrite = Literal["back", "through"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTierOptions:
    """Settings of the tiers of the KV cache. offloading_size: GiB of the host's memory, of all
    ranks together; None for no tier. offloading_backend: the implementation, by vLLM's word.
    disk_dir, disk_size: a folder for pages behind the host's, and its GiB, of all servers that
    share it; None for no files. min_tokens: a rest of a prefix with fewer tokens is computed
    instead of read. policy: which cached blocks are evicted first, on the device too. write: when a
    block is written to the host."""

    offloading_size: float | None = option(
        None,
        "GiB of the host's memory that hold KV blocks which leave the device; of all ranks "
        "together (default: no such tier)",
        keyword="kv_offloading_size",
        flag=Flag(metavar="GIB"),
        within=Range(0, above=True),
        crd=CrdField("cache.kv.hostMemory"),
    )
    offloading_backend: Literal["native"] = option(
        "native", "of --kv-offloading-size", keyword="kv_offloading_backend"
    )
    disk_dir: str | None = option(
        None,
        "folder for KV blocks that the host's memory holds, so that they outlive their eviction "
        "and the server; several servers may share it (default: no such tier)",
        keyword="kv_disk_dir",
        flag=Flag(metavar="FOLDER"),
        crd=CrdField(None),
    )
    disk_size: float | None = option(
        None,
        "GiB of files in --kv-disk-dir, of all servers that share it; the files that were used "
        "longest ago are removed",
        keyword="kv_disk_size",
        flag=Flag(metavar="GIB"),
        within=Range(0, above=True),
        crd=CrdField("cache.kv.disk.size"),
    )
    min_tokens: int = option(
        512,
        "fewest tokens of a prompt that are read from a tier; fewer are computed",
        keyword="kv_offload_min_tokens",
        flag=Flag(metavar="N"),
        within=Range(0),
    )
    policy: TierPolicy = option(
        "lru",
        "cached blocks that are evicted first, on the device and in a tier: the least recently "
        "used ones; protected keeps half of the places for blocks that were used at least twice",
        keyword="kv_offload_policy",
    )
    write: TierWrite = option(
        "back",
        "when a block is written to a tier: once no request uses it (back), or when it is computed "
        "(through)",
        keyword="kv_offload_write",
    )
