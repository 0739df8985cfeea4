"""Metrics of the exchange of KV pages, of a server with --kv-transfer-config."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from atom.metrics import REASON_SEPARATOR, RequestMetrics
from atom.model_engine.transfer_legs import TransferResult
from atom.model_engine.wire.core_stats import StatsBody

_LABELS = ["model_name"]


def transfer_metrics(stats: StatsBody, requests: RequestMetrics, name: str) -> Iterator[Metric]:
    """Yield the metrics of one server, all ranks together."""
    yield from _request_metrics(requests, name)
    tickets = GaugeMetricFamily(
        "atom:kv_transfer_tickets",
        "Prompts whose KV pages are kept for another engine.",
        labels=_LABELS,
    )
    tickets.add_metric([name], stats.kv_transfer_tickets)
    yield tickets
    yield _counter(
        "kv_transfer_expired",
        "Kept prompts that no engine read before their lease ended.",
        name,
        stats.kv_transfer_expired_total,
    )
    yield _counter(
        "kv_transfer_checksum_errors",
        "KV pages that arrived damaged, and were computed instead.",
        name,
        stats.kv_transfer_checksum_errors_total,
    )
    moved = CounterMetricFamily(
        "atom:kv_transfer_bytes",
        "Bytes of KV pages, by direction.",
        labels=[*_LABELS, "direction"],
    )
    moved.add_metric([name, "sent"], stats.kv_transfer_sent_bytes_total)
    moved.add_metric([name, "received"], stats.kv_transfer_received_bytes_total)
    yield moved


def _request_metrics(requests: RequestMetrics, name: str) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "atom:kv_transfer_requests",
        "Decode legs, by the origin of their prompt and the reason for it.",
        labels=[*_LABELS, "result", "reason"],
    )
    known = dict.fromkeys((f"{result}{REASON_SEPARATOR}" for result in TransferResult), 0)
    for key, count in (known | requests.transfers).items():
        result, _, reason = key.partition(REASON_SEPARATOR)
        ended.add_metric([name, result, reason], count)
    yield ended
    tokens = sum(requests.transferred.values())
    yield _counter(
        "kv_transfer_tokens", "Prompt tokens whose KV pages were received.", name, tokens
    )
    seconds = HistogramMetricFamily(
        "atom:kv_transfer_seconds",
        "Wait of a decode leg for KV pages; part is the handshake, the copy, or the whole wait.",
        labels=[*_LABELS, "part"],
    )
    parts = {
        "wait": requests.transfer_wait,
        "handshake": requests.transfer_handshake,
        "copy": requests.transfer_copy,
    }
    for part, histogram in parts.items():
        buckets = [
            ("+Inf" if bound == float("inf") else str(bound), count)
            for bound, count in histogram.cumulative()
        ]
        seconds.add_metric([name, part], buckets, sum_value=histogram.total)
    yield seconds


def _counter(key: str, help_text: str, name: str, value: float) -> Metric:
    counter = CounterMetricFamily(f"atom:{key}", help_text, labels=_LABELS)
    counter.add_metric([name], value)
    return counter
