"""Metrics of images: what the encoder did, and the memory that pixels take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric, SummaryMetricFamily

from atom.entrypoints.metric_families import Counts, counters, gauge, labelled_counter
from atom.model_engine.wire.core_stats import StatsBody


def image_metrics(stats: StatsBody, name: str) -> Iterator[Metric]:
    """Yield the counters of images; 0 for a model of text."""
    values = {
        "mm_cache_hits": (
            "Images whose encoder output was kept from an earlier step.",
            stats.image_hits_total,
        ),
        "mm_encoder_failures": (
            "Images whose encoder output was not finite, which ends their requests.",
            stats.image_failures_total,
        ),
    }
    items: Counts = {("image",): stats.image_items_total}
    yield labelled_counter("mm_items", "Items other than text in prompts.", name, ["kind"], items)
    seconds = SummaryMetricFamily(
        "atom:mm_encoder_seconds", "Seconds that images took to encode.", labels=["model_name"]
    )
    seconds.add_metric([name], stats.images_encoded_total, stats.encoder_seconds_total)
    yield seconds
    yield from counters(values, name)
    yield gauge(
        "mm_engine_bytes",
        "Pixels of open requests in the engine: of those that run too, which a preemption computes "
        "again.",
        name,
        stats.image_bytes,
    )


def image_memory_metrics(figures: Mapping[str, int], name: str) -> Iterator[Metric]:
    """Yield the memory of images in the server; 0 for a model of text."""
    yield gauge(
        "mm_waiting_bytes",
        "Pixels of open requests that the server has memory for (--image-memory-mib).",
        name,
        figures.get("held_bytes", 0),
    )
    yield gauge(
        "mm_requests_held",
        "Requests that wait for memory for their images.",
        name,
        figures.get("waiting", 0),
    )
