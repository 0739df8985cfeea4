"""/metrics of several models: each one's own series, which its name tells apart, and how they share
the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from atom.entrypoints.metrics.collector import EngineCollector, wake_metrics
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.outlook.metrics import OutlookMetrics
from atom.entrypoints.stored_batches.metrics import BatchCollector
from atom.entrypoints.stored_batches.service import BatchService
from atom.entrypoints.swap.shared_device import SharedDevice


def models_metrics_routes(
    states: Mapping[str, ServerState],
    device: SharedDevice,
    is_ready: Callable[[], bool],
    batches: BatchService | None = None,
) -> APIRouter:
    router = APIRouter()
    outlooks = {name: OutlookMetrics() for name in states}

    @router.head("/metrics")
    @router.get("/metrics")
    async def metrics() -> Response:
        # The server's own series come first: a model's would have less detail.
        collectors: list[Collector] = [
            DeviceCollector(device, list(states), is_ready()),
            BatchCollector(batches),
        ]
        collectors += [
            EngineCollector(state, await state.numbers(), outlooks[name])
            for name, state in states.items()
        ]
        return Response(generate_latest(Merged(collectors)), media_type=CONTENT_TYPE_LATEST)

    return router


class DeviceCollector(Collector):
    """Collect the metrics of models that share a device."""

    def __init__(self, device: SharedDevice, names: list[str], is_ready: bool) -> None:
        self._device = device
        self._names = names
        self._is_ready = is_ready

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "atom:ready", "1 while requests are served.", value=int(self._is_ready)
        )
        yield from wake_metrics(
            {
                name: (self._device.num_waiting(name), self._device.wakes(name))
                for name in self._names
            }
        )


class Merged(Collector):
    """Merge several collectors' metrics, those of one name into one; a series that two have, such
    as the version's, appears once."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for collector in self._collectors:
            for metric in collector.collect():
                kept = merged.setdefault(metric.name, metric)
                if kept is not metric:
                    known = {(each.name, tuple(each.labels.items())) for each in kept.samples}
                    kept.samples += (
                        each
                        for each in metric.samples
                        if (each.name, tuple(each.labels.items())) not in known
                    )
        yield from merged.values()
