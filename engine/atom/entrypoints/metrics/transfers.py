"""Metrics of the exchange of KV pages, of a server with --kv-transfer-config."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from atom.entrypoints.metric_families import (
    LABELS,
    Counts,
    buckets,
    counter,
    gauge,
    labelled_counter,
)
from atom.metrics import REASON_SEPARATOR, TransferMetrics
from atom.model_engine.transfer_legs import TransferResult
from atom.model_engine.wire.core_stats import StatsBody


def transfer_metrics(stats: StatsBody, transfers: TransferMetrics, name: str) -> Iterator[Metric]:
    """Yield the metrics of one server, all ranks together."""
    yield from _leg_metrics(transfers, name)
    yield gauge(
        "kv_transfer_tickets",
        "Prompts whose KV pages are kept for another engine.",
        name,
        stats.kv_transfer_tickets,
    )
    yield counter(
        "kv_transfer_expired",
        "Kept prompts that no engine read before their lease ended.",
        name,
        stats.kv_transfer_expired_total,
    )
    yield counter(
        "kv_transfer_checksum_errors",
        "KV pages that arrived damaged, and were computed instead.",
        name,
        stats.kv_transfer_checksum_errors_total,
    )
    moved: Counts = {
        ("sent",): stats.kv_transfer_sent_bytes_total,
        ("received",): stats.kv_transfer_received_bytes_total,
    }
    yield labelled_counter(
        "kv_transfer_bytes", "Bytes of KV pages, by direction.", name, ["direction"], moved
    )


def _leg_metrics(transfers: TransferMetrics, name: str) -> Iterator[Metric]:
    legs: Counts = {(result.value, ""): 0 for result in TransferResult}
    for key, count in transfers.legs.items():
        result, _, reason = key.partition(REASON_SEPARATOR)
        legs[result, reason] = count
    yield labelled_counter(
        "kv_transfer_requests",
        "Decode legs, by the origin of their prompt and the reason for it.",
        name,
        ["result", "reason"],
        legs,
    )
    tokens = sum(transfers.tokens.values())
    yield counter("kv_transfer_tokens", "Prompt tokens whose KV pages were received.", name, tokens)
    seconds = HistogramMetricFamily(
        "atom:kv_transfer_seconds",
        "Wait of a decode leg for KV pages; part is the handshake, the copy, or the whole wait.",
        labels=[*LABELS, "part"],
    )
    parts = {
        "wait": transfers.wait,
        "handshake": transfers.handshake,
        "copy": transfers.copy,
    }
    for part, histogram in parts.items():
        seconds.add_metric([name, part], buckets(histogram), sum_value=histogram.total)
    yield seconds
