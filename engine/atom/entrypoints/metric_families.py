"""Metric families in Prometheus' form. Their names begin with "atom:", and the first label of each
is the model's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from atom.metrics import Histogram

LABELS = ["model_name"]
Counts = dict[tuple[str, ...], float]  # by the values of labels


def gauge(key: str, help_text: str, name: str, value: float) -> Metric:
    """Return the gauge of a model."""
    return labelled_gauge(key, help_text, name, (), {(): value})


def counter(key: str, help_text: str, name: str, value: float) -> Metric:
    """Return the counter of a model."""
    return labelled_counter(key, help_text, name, (), {(): value})


def counters(values: Mapping[str, tuple[str, float]], name: str) -> Iterator[Metric]:
    """Yield the counters of a model, of (help text, value) by key."""
    for key, (help_text, value) in values.items():
        yield counter(key, help_text, name, value)


def labelled_gauge(
    key: str, help_text: str, name: str, labels: Sequence[str], figures: Counts
) -> Metric:
    """Return the gauge of a model with further labels. figures: by the values of these."""
    family = GaugeMetricFamily(f"atom:{key}", help_text, labels=[*LABELS, *labels])
    return _filled(family, name, figures)


def labelled_counter(
    key: str, help_text: str, name: str, labels: Sequence[str], counts: Counts
) -> Metric:
    """Return the counter of a model with further labels. counts: by the values of these."""
    family = CounterMetricFamily(f"atom:{key}", help_text, labels=[*LABELS, *labels])
    return _filled(family, name, counts)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, name: str, figures: Counts) -> Metric:
    for values, figure in figures.items():
        family.add_metric([name, *values], figure)
    return family


def buckets(values: Histogram) -> list[tuple[str, float]]:
    """List the (upper bound, count) pairs of a histogram as its family takes them."""
    return [
        ("+Inf" if bound == float("inf") else str(bound), count)
        for bound, count in values.cumulative()
    ]
