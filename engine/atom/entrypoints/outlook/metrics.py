"""Metrics of predictions: the latencies of a request that came now, and steps beside a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from atom.advisor.rates import Tables
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer
from atom.config import Config
from atom.entrypoints.metric_families import counter, gauge, labelled_gauge
from atom.entrypoints.outlook.step_watch import StepWatch, launches_of, measured_timer
from atom.model_engine.front.admission.expectations import Expectations, Expected
from atom.model_engine.wire.engine_protocol import EngineReport, RankStats
from atom.model_engine.wire.outlook_body import Limit
from atom.model_engine.wire.step_window import total_steps

_USUAL_PROMPT = 512  # tokens of a request, before the first one came


class OutlookMetrics:
    """Yields the metrics of one server; belongs to the process that is scraped."""

    def __init__(self, tables: Tables | None = None) -> None:
        """tables: of rates; None for those of the package."""
        self._tables = tables
        self._watch: StepWatch | None = None

    def collect(
        self,
        config: Config,
        report: EngineReport | None,
        by_rank: Mapping[int, RankStats],
    ) -> Iterator[Metric]:
        """Yield the metrics, once the engine has started."""
        if report is None:
            return
        if self._watch is None:
            tables = self._tables if self._tables is not None else Tables.packaged()
            timer = measured_timer(config, report, tables)
            launches = launches_of(timer, config, report)
            self._watch = StepWatch(timer, launches=launches)
        expected = Expectations(lambda: by_rank, lambda: 0).now() or _by_table(self._watch.timer)
        outlooks = [each.outlook for each in by_rank.values() if each.outlook is not None]
        steps = total_steps(each.steps for each in outlooks)
        ratio = self._watch.ratio(steps)
        yield from outlook_metrics(config.model.served_name, expected, steps.seconds, ratio)


def outlook_metrics(
    name: str, expected: Expected | None, step_seconds: float, ratio: float | None
) -> Iterator[Metric]:
    """Yield the metrics of a model. step_seconds: of all steps so far; ratio: of the last minute's
    steps to those of a table. A figure that is not known is None."""
    if expected is not None:
        yield from _expected(expected, name)
    yield counter("step_seconds", "Seconds of the engine's steps.", name, step_seconds)
    if ratio is not None:
        yield gauge(
            "step_seconds_ratio",
            "Seconds of the steps of the last minute by those that the card's measured table "
            "predicts.",
            name,
            ratio,
        )


def _expected(expected: Expected, name: str) -> Iterator[Metric]:
    yield gauge(
        "predicted_ttft_seconds",
        "Seconds until its first token that a request which came now would see.",
        name,
        expected.ttft_seconds,
    )
    yield gauge(
        "predicted_itl_seconds",
        "Seconds between two tokens that a request which came now would see.",
        name,
        expected.itl_seconds,
    )
    yield gauge(
        "predicted_load_ratio",
        "Share of the time that the requests of the last half minute take in full steps.",
        name,
        expected.load,
    )
    yield labelled_gauge(
        "predicted_ttft_limit",
        "1 for the resource that a first token waits for, 0 for the others.",
        name,
        ["resource"],
        {(resource,): int(resource == expected.limit) for resource in Limit},
    )


def _by_table(timer: StepTimer | None) -> Expected | None:
    """Predict the first request of a server whose steps have not been measured yet."""
    if timer is None:
        return None
    first = timer.seconds(StepShape.prompt(_USUAL_PROMPT))
    return Expected(first, timer.seconds(StepShape.decodes(1, _USUAL_PROMPT)), first, Limit.NOTHING)
