"""Metrics of the tiers of the KV cache, of a server with --kv-offloading-size."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from atom.entrypoints.metric_families import Counts, counters, labelled_counter, labelled_gauge
from atom.model_engine.wire.core_stats import StatsBody

_HOST = "host"  # the tier in the host's memory
_DISK = "disk"  # the tier in files


def tier_metrics(stats: StatsBody, name: str) -> Iterator[Metric]:
    """Yield the metrics of the tiers, each of which exists only with its tier, so that a
    dashboard's row is empty without them."""
    has_disk = stats.offload_disk_size_bytes > 0
    usage: Counts = {(_HOST,): stats.offload_pages_used / stats.offload_pages}
    if has_disk:
        usage[_DISK,] = stats.offload_disk_used_bytes / stats.offload_disk_size_bytes
    yield labelled_gauge(
        "kv_offload_usage_ratio",
        "Share of a tier's pages that are in use, or of the bytes of files, 0 to 1.",
        name,
        ["tier"],
        usage,
    )
    for key, text, counts in (
        (
            "queries",
            "Prompt tokens beyond the device's cached prefix that were looked up in a tier.",
            (stats.offload_queries_total, stats.offload_queries_total),
        ),
        (
            "hits",
            "Of these, tokens that the tier has, and no faster one.",
            (stats.offload_hits_total, stats.offload_disk_hits_total),
        ),
    ):
        found = dict(zip((_HOST, _DISK)[: 1 + has_disk], counts, strict=False))
        tiers: Counts = {(tier,): count for tier, count in found.items()}
        yield labelled_counter(f"kv_offload_{key}", text, name, ["tier"], tiers)
    yield labelled_counter(
        "kv_offload_computed",
        "Of these, tokens that were computed, since reading was predicted to take longer.",
        name,
        ["tier"],
        {(_HOST,): stats.offload_computed_total},
    )
    dropped: Counts = {
        ("queue_full",): stats.offload_dropped_queue_total,
        ("tier_full",): stats.offload_dropped_full_total,
        ("cheap",): stats.offload_dropped_cheap_total,
    }
    if has_disk:
        dropped["disk",] = stats.offload_disk_dropped_total
    yield labelled_counter(
        "kv_offload_store_dropped",
        "Pages that were not written: too many were being written, every place was in use, they "
        "are computed faster than read, or they were evicted before a file had them.",
        name,
        ["reason"],
        dropped,
    )
    errors: Counts = {(_HOST, "checksum"): stats.offload_checksum_errors_total}
    errors |= {(_DISK, kind): count for kind, count in stats.offload_disk_errors_total}
    yield labelled_counter(
        "kv_offload_errors",
        "Pages of a tier that could not be used, and were computed again, and faults of a disk, "
        "each of which switches its tier off for a minute.",
        name,
        ["tier", "kind"],
        errors,
    )
    yield from _copies(stats, name)
    if has_disk:
        yield from _files(stats, name)


def _copies(stats: StatsBody, name: str) -> Iterator[Metric]:
    values = {
        "kv_offload_load_bytes": (
            "Bytes read from the host, of one rank.",
            stats.offload_load_bytes_total,
        ),
        "kv_offload_load_seconds": ("Seconds of these copies.", stats.offload_load_seconds_total),
        "kv_offload_store_bytes": (
            "Bytes written to the host, of one rank.",
            stats.offload_store_bytes_total,
        ),
        "kv_offload_store_seconds": ("Seconds of these copies.", stats.offload_store_seconds_total),
    }
    yield from counters(values, name)


def _files(stats: StatsBody, name: str) -> Iterator[Metric]:
    values = {
        "kv_offload_disk_load_bytes": (
            "Bytes read from files, of all ranks.",
            stats.offload_disk_load_bytes_total,
        ),
        "kv_offload_disk_load_seconds": (
            "Seconds during which files were read.",
            stats.offload_disk_load_seconds_total,
        ),
        "kv_offload_disk_store_bytes": (
            "Bytes written to files, of all ranks.",
            stats.offload_disk_store_bytes_total,
        ),
        "kv_offload_disk_store_seconds": (
            "Seconds during which files were written.",
            stats.offload_disk_store_seconds_total,
        ),
    }
    yield from counters(values, name)
