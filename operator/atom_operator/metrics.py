"""The operator's own Prometheus metrics, on its own registry. Nothing else is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """Collect an operator's health figures: whether it reconciles, how long it takes, and whether
    it falls behind."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "atom_operator_reconciles",
            "Reconciles, by result.",
            ["result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "atom_operator_reconcile_seconds",
            "Duration of one reconcile.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.queue_length = Gauge(
            "atom_operator_queue_length",
            "AtomDeployments that wait for a reconcile.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "atom_operator_leader",
            "1 while this replica holds the Lease and reconciles.",
            registry=self.registry,
        )

        self._reviews = Counter(
            "atom_operator_admission_reviews",
            "Admission reviews, by result.",
            ["result"],
            registry=self.registry,
        )

        self._requests = Counter(
            "atom_operator_api_requests",
            "Requests to the API server by verb and kind; kopf's own are not counted.",
            ["verb", "kind"],
            registry=self.registry,
        )

    def request(self, verb: str, kind: str) -> None:
        """Count one request to the API server."""
        self._requests.labels(verb=verb, kind=kind).inc()

    def review(self, result: str) -> None:
        """Count one admission review."""
        self._reviews.labels(result=result).inc()

    @contextmanager
    def reconcile(self) -> Iterator[None]:
        """Count and time one reconcile."""
        result = "error"
        try:
            with self._seconds.time():
                yield
            result = "ok"
        finally:
            self._reconciles.labels(result=result).inc()
