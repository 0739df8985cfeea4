"""The page of metrics: what engine and operator give to a scrape when everything is on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from atom.client_figures import ClientCounts
from atom.entrypoints.metrics.collector import EngineCollector
from atom.entrypoints.metrics_exchange import ServerNumbers
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.outlook.metrics import OutlookMetrics, outlook_metrics
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.metrics import BatchCollector
from atom.entrypoints.stored_batches.service import BatchService
from atom.entrypoints.swap.models_metrics import DeviceCollector, Merged
from atom.entrypoints.swap.shared_device import SharedDevice, Sharing, SharingModel
from atom.kv_transfer_config.values import KVTransferConfig
from atom.metrics import RequestMetrics
from atom.model_engine.front.admission.expectations import Expected
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.front.loras.served_loras import ServedLoras
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import RankStats
from atom.model_engine.wire.outlook_body import Limit
from atom.sizing.options.execution import SleepOptions
from atom_operator.metrics import OperatorMetrics
from tools.reference.markdown import code, codes, head, table

_HEAD = """
Prometheus metrics, by the names under which a scrape has them. A histogram has the series
`_bucket`, `_sum` and `_count`. What to do about them is in the runbooks, and
[monitoring](../guides/gateway-and-monitoring.md) says how a Prometheus finds them.
"""
_ENGINE = """
`GET /metrics` of the HTTP port. Series of ranks exist with several data-parallel ranks,
`spec_decode` with speculation, `expert` with `--enable-eplb`, `kv_offload` with
`--kv-offloading-size` (`kv_offload_disk` with `--kv-disk-dir`), `lora` with `--enable-lora`,
`model` with `--models`, `batch` with `--batch-dir`.
"""
_OPERATOR = "The operator's own port for metrics; only the replica that leads counts reconciles."


def page() -> str:
    return (
        head("Metrics", _HEAD)
        + f"\n## Engine\n{_ENGINE}\n{_table(_engine())}"
        + f"\n## Operator\n{_OPERATOR}\n\n{_table(_operator())}"
    )


def _table(metrics: Iterable[Metric]) -> str:
    return table(("metric", "type", "labels", "meaning"), map(_row, metrics))


def _row(metric: Metric) -> tuple[str, str, str, str]:
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    labels = dict.fromkeys(name for sample in metric.samples for name in sample.labels)
    kept = [name for name in labels if name not in ("le", "version")]
    return code(metric.name + suffix), metric.type, codes(kept), metric.documentation


def _engine() -> list[Metric]:
    """Collect the metrics of a server with two ranks that share experts, speculation and
    clients."""
    lora = SimpleNamespace(max_loras=1)
    config = SimpleNamespace(
        model=SimpleNamespace(served_name="m"),
        lora=lora,
        sleep=SleepOptions(),
        cache=SimpleNamespace(kv_transfer=KVTransferConfig()),
    )
    status = SimpleNamespace(report=SimpleNamespace(block_size=16, num_blocks=1))
    state = SimpleNamespace(
        status=SimpleNamespace(state=EngineState.READY),
        engine=SimpleNamespace(
            config=config,
            stats_told_at=0.0,
            status=status,
            loras=ServedLoras(None, ""),
            pauses=SimpleNamespace(weights_version="fp_1", sleep_level=0),
        ),
    )
    ranks = {rank: RankStats(rank=rank, number=1, stats=_stats()) for rank in range(2)}
    numbers = ServerNumbers(RequestMetrics(), ranks, {"key-0": ClientCounts()})
    device = SharedDevice([SharingModel("m", 1.0)], Sharing(1.0))
    predicted = list(outlook_metrics("m", Expected(0.0, 0.0, 0.0, Limit.NOTHING), 0.0, 1.0))
    outlook = SimpleNamespace(collect=lambda *_: predicted)
    batches = SimpleNamespace(
        batches=SimpleNamespace(states=Counter),
        worker=SimpleNamespace(requests=Counter()),
        files=SimpleNamespace(used_bytes=0, options=BatchOptions()),
    )
    collectors: list[Collector] = [
        EngineCollector(cast(ServerState, state), numbers, cast(OutlookMetrics, outlook)),
        DeviceCollector(device, ["m"], is_ready=True),
        BatchCollector(cast(BatchService, batches)),
    ]
    return list(Merged(collectors).collect())


def _stats() -> StatsBody:
    zeros = dict.fromkeys(StatsBody.__struct_fields__, 0)
    totals = {"expert_tokens_mean": 1, "expert_tokens_most": 1, "accepted_at_totals": (0,)}
    adapters = {"running_loras": (), "waiting_loras": ()}
    tiers = {"offload_pages": 1, "offload_disk_size_bytes": 1, "offload_disk_errors_total": ()}
    return msgspec.convert(zeros | totals | adapters | tiers, StatsBody)


def _operator() -> list[Metric]:
    metrics = OperatorMetrics()
    metrics.request("get", "Pod")
    metrics.review("allowed")
    with metrics.reconcile():
        pass
    return list(metrics.registry.collect())
