"""Metrics of stored batches, of the whole server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from atom.entrypoints.stored_batches.records import BatchState
from atom.entrypoints.stored_batches.service import BatchService


class BatchCollector(Collector):
    def __init__(
        self, service: BatchService | None, requests: Mapping[str, int] | None = None
    ) -> None:
        """service: None yields no metric. requests: asked by all HTTP processes of the server, by
        outcome; None or empty for those of this process alone."""
        self._service, self._requests = service, requests

    def collect(self) -> Iterator[Metric]:
        service = self._service
        if service is None:
            return
        batches = GaugeMetricFamily("atom:batches", "Kept batches by state.", labels=["state"])
        states = service.batches.states()
        for state in BatchState:
            batches.add_metric([state], states[state])
        yield batches
        requests = CounterMetricFamily(
            "atom:batch_requests", "Requests of batches that were asked.", labels=["outcome"]
        )
        asked = self._requests or service.worker.requests
        for outcome in ("completed", "failed"):
            requests.add_metric([outcome], asked.get(outcome, 0))
        yield requests
        yield GaugeMetricFamily(
            "atom:batch_storage_bytes",
            "Bytes that files of batches take.",
            value=service.files.used_bytes,
        )
        yield GaugeMetricFamily(
            "atom:batch_storage_limit_bytes",
            "Bytes that files of batches may take.",
            value=service.files.options.storage_bytes,
        )
