"""/metrics: the engine's counters in Prometheus' text format, read at the moment of the scrape and
summed over all HTTP processes (metrics_exchange.py) and ranks.

Names begin with "atom:" as the upstream engine's; every series of a model has the label
model_name. It only reads: the engine core counts, the output processor measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from starlette.responses import Response

import atom
from atom.client_figures import ClientCounts
from atom.entrypoints.kv_transfer.metrics import transfer_metrics
from atom.entrypoints.openai.metrics_exchange import ServerNumbers
from atom.entrypoints.openai.state import ServerState
from atom.metrics import HANDED_OVER, LOST, Histogram, RequestMetrics
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.request import FinishReason
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.rank_answers import add_stats

_REFRESH_HELP = "When the rank that is furthest behind told its numbers, in Unix time."

_HOST = "host"  # the tier in the host's memory
_EXAMPLE = 'atom:num_requests_running{model_name="MODEL"} 1.0'


def metrics_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["status"])

    text: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}}}
    }

    @router.head("/metrics", include_in_schema=False)
    @router.get(
        "/metrics",
        summary="Counters and gauges for Prometheus",
        description="In its text format, summed over all processes and ranks of the server.",
        response_class=Response,
        responses=text,
    )
    async def metrics() -> Response:
        collector = EngineCollector(state, await state.numbers())
        return Response(generate_latest(collector), media_type=CONTENT_TYPE_LATEST)

    return router


class EngineCollector(Collector):
    """Collect the metrics of one server; before the engine exists only those known then."""

    def __init__(self, state: ServerState, numbers: ServerNumbers | None) -> None:
        self._state = state
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("atom:build", "Version of the server.")
        build.add_metric([], {"version": atom.__version__})
        yield build
        ready = self._state.status.state is EngineState.READY
        yield GaugeMetricFamily("atom:ready", "1 while requests are served.", value=int(ready))
        engine = self._state.engine
        if engine is not None and self._numbers is not None:
            name = engine.config.model.served_name
            if engine.status.report is not None:
                yield _cache_config(engine.status.report, name)
            if engine.stats_told_at is not None:
                key, help_text = "metrics_last_refresh_timestamp_seconds", _REFRESH_HELP
                yield _gauge(key, help_text, name, engine.stats_told_at)
            yield _weights(engine.pauses.weights_version, name)
            level = engine.pauses.sleep_level
            yield _gauge("sleeping", "Level at which the engine sleeps; 0 awake.", name, level)
            if engine.config.sleep.idle_seconds is not None:
                yield from wake_metrics(
                    {name: (engine.requests_held, engine.pauses.wakes_for_requests)}
                )
            yield from _engine_metrics(name, self._numbers)
            told = [each.stats for each in self._numbers.stats_by_rank.values()]
            if engine.config.lora is not None and told:
                yield _lora_requests(engine, add_stats(told))
            if engine.config.cache.kv_transfer is not None and told:
                yield from transfer_metrics(add_stats(told), self._numbers.requests, name)


def wake_metrics(models: Mapping[str, tuple[int, int]]) -> Iterator[Metric]:
    """Yield metrics of models that requests wake up, by name: waiting requests, and wake-ups."""
    labels = ["model_name"]
    held = GaugeMetricFamily(
        "atom:model_requests_held", "Requests that wait for their model to be awake.", labels=labels
    )
    wakes = CounterMetricFamily(
        "atom:model_wakes", "Times that a model has woken up for requests.", labels=labels
    )
    for name, (waiting, count) in models.items():
        held.add_metric([name], waiting)
        wakes.add_metric([name], count)
    yield held
    yield wakes


def _engine_metrics(name: str, numbers: ServerNumbers) -> Iterator[Metric]:
    by_rank = {rank: told.stats for rank, told in numbers.stats_by_rank.items()}
    told = bool(by_rank)
    yield _gauge("metrics_snapshot_available", "1 once the engine has told numbers.", name, told)
    if by_rank:
        stats = add_stats(list(by_rank.values()))
        yield from _gauges(stats, name)
        yield from _counters(stats, name)
    if len(by_rank) > 1:
        yield from _rank_metrics(by_rank, name)
    yield from _request_metrics(numbers.requests, name)
    yield from _client_metrics(numbers.clients, name)


def _lora_requests(engine: AsyncLLMEngine, stats: StatsBody) -> Metric:
    """Report the adapters of requests, by the name and labels that llm-d's endpoint picker
    reads."""
    assert engine.config.lora is not None
    info = GaugeMetricFamily(
        "atom:lora_requests_info",
        "Adapters of requests that run and that wait, in labels; when they were told, in Unix "
        "time.",
        labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    running, waiting = (
        ",".join(filter(None, map(engine.loras.name_of, numbers)))
        for numbers in (stats.running_loras, stats.waiting_loras)
    )
    info.add_metric(
        [str(engine.config.lora.max_loras), running, waiting], engine.stats_told_at or 0.0
    )
    return info


def _cache_config(report: EngineReport, name: str) -> Metric:
    """Return the size of a rank's cache, by the name and labels that llm-d's endpoint picker
    reads."""
    info = GaugeMetricFamily(
        "atom:cache_config_info",
        "The KV cache of a rank, in labels; always 1.",
        labels=["model_name", "block_size", "num_gpu_blocks"],
    )
    info.add_metric([name, str(report.block_size), str(report.num_blocks)], 1)
    return info


def _weights(version: str, name: str) -> Metric:
    info = GaugeMetricFamily(
        "atom:weights_info",
        "Version of the weights that requests begin with, in a label; always 1.",
        labels=["model_name", "weight_version"],
    )
    info.add_metric([name, version], 1)
    return info


def _rank_metrics(by_rank: Mapping[int, StatsBody], name: str) -> Iterator[Metric]:
    """Yield the metrics by rank under separate names, so that a sum over a series without `rank`
    counts nothing twice."""
    labels = ["model_name", "rank"]
    gauges: dict[str, tuple[str, Callable[[StatsBody], float]]] = {
        "rank_requests_running": ("Requests of a rank that generate.", _running),
        "rank_requests_waiting": ("Requests of a rank that wait for room.", _waiting),
        "rank_kv_cache_usage_ratio": ("Share of a rank's KV blocks held, 0 to 1.", _usage_ratio),
    }
    for key, (help_text, value) in gauges.items():
        gauge = GaugeMetricFamily(f"atom:{key}", help_text, labels=labels)
        for rank, stats in sorted(by_rank.items()):
            gauge.add_metric([name, str(rank)], value(stats))
        yield gauge
    tokens = CounterMetricFamily(
        "atom:rank_generation_tokens", "Tokens that a rank generated.", labels=labels
    )
    for rank, stats in sorted(by_rank.items()):
        tokens.add_metric([name, str(rank)], stats.generation_tokens_total)
    yield tokens


def _running(stats: StatsBody) -> float:
    return stats.requests_running


def _waiting(stats: StatsBody) -> float:
    return stats.requests_waiting


def _usage_ratio(stats: StatsBody) -> float:
    return stats.kv_blocks_used / max(stats.kv_blocks_total, 1)


def _request_metrics(metrics: RequestMetrics, name: str) -> Iterator[Metric]:
    finished = CounterMetricFamily(
        "atom:requests_finished",
        "Requests that ended, by finish reason.",
        labels=["model_name", "finished_reason"],
    )
    for reason in FinishReason:  # also those of no request yet: a rate needs its start
        finished.add_metric([name, reason], metrics.finished.get(reason, 0))
    yield finished
    continued = CounterMetricFamily(
        "atom:requests_continued",
        "Answers that went on elsewhere, since what computed them was lost or had to end.",
        labels=["model_name", "cause"],
    )
    for cause in (LOST, HANDED_OVER):
        continued.add_metric([name, cause], metrics.continued.get(cause, 0))
    yield continued
    values: dict[str, tuple[str, Histogram]] = {
        "time_to_first_token_seconds": (
            "From the arrival of a request to its first token.",
            metrics.time_to_first_token,
        ),
        "inter_token_latency_seconds": (
            "From one token of a request to its next.",
            metrics.inter_token,
        ),
        "e2e_request_latency_seconds": (
            "From the arrival of a request to its end, unless its client left.",
            metrics.end_to_end,
        ),
        "request_queue_time_seconds": (
            "From the arrival of a request to the step that began with its prompt.",
            metrics.queue,
        ),
        "request_prompt_tokens": (
            "Prompt tokens of a request that ended, whether it was begun or not.",
            metrics.prompt_tokens,
        ),
        "request_generation_tokens": (
            "Tokens of a request that ended, up to its stop string or its client's leave.",
            metrics.output_tokens,
        ),
    }
    for key, (help_text, histogram) in values.items():
        yield _histogram(f"atom:{key}", help_text, histogram, name)


def _gauges(stats: StatsBody, name: str) -> Iterator[Metric]:
    used, total = stats.kv_blocks_used, stats.kv_blocks_total
    hit_ratio = stats.cached_tokens_total / max(stats.prompt_tokens_total, 1)
    values: dict[str, tuple[str, float]] = {
        "requests_running": ("Requests that generate.", stats.requests_running),
        "requests_waiting": ("Requests that wait for room.", stats.requests_waiting),
        "requests_partial_prefill": (
            "Running requests with a part of the prompt still to compute.",
            stats.requests_partial_prefill,
        ),
        "kv_cache_blocks_used": ("KV blocks that requests hold.", used),
        "kv_cache_blocks_free": ("KV blocks that no request holds.", total - used),
        "kv_cache_blocks_indexed": (
            "KV blocks that the prefix cache can find, held or not.",
            stats.kv_blocks_indexed,
        ),
        "kv_cache_blocks_total": ("KV blocks there are.", total),
        "kv_cache_usage_ratio": ("Share of KV blocks held, 0 to 1.", _usage_ratio(stats)),
        "prefix_cache_hit_ratio": (
            "Share of all prompt tokens so far that the prefix cache had, 0 to 1.",
            hit_ratio,
        ),
    }
    for key, (help_text, value) in values.items():
        yield _gauge(key, help_text, name, value)


def _gauge(key: str, help_text: str, name: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(f"atom:{key}", help_text, labels=["model_name"])
    gauge.add_metric([name], value)
    return gauge


def _counters(stats: StatsBody, name: str) -> Iterator[Metric]:
    values = {
        "prompt_tokens": (
            "Prompt tokens of requests that were begun, computed or found cached.",
            stats.prompt_tokens_total,
        ),
        "generation_tokens": ("Tokens generated.", stats.generation_tokens_total),
        "preemptions": ("Requests put back to make room.", stats.preemptions_total),
        "prefix_cache_cached_tokens": (
            "Prompt tokens found in the prefix cache.",
            stats.cached_tokens_total,
        ),
        "prefix_cache_requests": (
            "Requests whose prompt was looked up in the prefix cache.",
            stats.cache_requests_total,
        ),
        "prefix_cache_full_tokens": (
            "Prompt tokens of these requests.",
            stats.cache_full_tokens_total,
        ),
        "guided_requests_ended_for_work": (
            "Requests that were ended because following their grammar took too much.",
            stats.guided_ended_for_work_total,
        ),
        "engine_steps": ("Steps of the engine.", stats.steps_total),
        "spec_decode_num_drafts": (
            "Times that a request carried drafts in a step.",
            stats.drafts_total,
        ),
        "spec_decode_num_draft_tokens": ("Tokens drafted.", stats.draft_tokens_total),
        "spec_decode_num_accepted_tokens": (
            "Drafted tokens that held.",
            stats.accepted_tokens_total,
        ),
    }
    for key, (help_text, value) in values.items():
        counter = CounterMetricFamily(f"atom:{key}", help_text, labels=["model_name"])
        counter.add_metric([name], value)
        yield counter
    if stats.offload_pages:
        yield from _tier_metrics(stats, name)
    yield from _images(stats, name)
    if stats.expert_tokens_most:
        yield from _expert_balance(stats, name)
    if stats.accepted_at_totals:
        yield _accepted_by_position(stats, name)


def _tier_metrics(stats: StatsBody, name: str) -> Iterator[Metric]:
    """Yield the metrics of the host's tier, which exist only with one, so that a dashboard's row is
    empty without it."""
    usage = GaugeMetricFamily(
        "atom:kv_offload_usage_ratio",
        "Share of a tier's pages that are in use, 0 to 1.",
        labels=["model_name", "tier"],
    )
    usage.add_metric([name, _HOST], stats.offload_pages_used / stats.offload_pages)
    yield usage
    for key, text, count in (
        (
            "queries",
            "Prompt tokens beyond the device's cached prefix that were looked up in a tier.",
            stats.offload_queries_total,
        ),
        ("hits", "Of these, tokens that the tier has.", stats.offload_hits_total),
        (
            "computed",
            "Of these, tokens that were computed, since reading was predicted to take longer.",
            stats.offload_computed_total,
        ),
    ):
        counter = CounterMetricFamily(f"atom:kv_offload_{key}", text, labels=["model_name", "tier"])
        counter.add_metric([name, _HOST], count)
        yield counter
    yield from _labelled(
        "store_dropped",
        "Pages that were not written: too many were being written, or every place was in use.",
        ["reason"],
        name,
        {
            ("queue_full",): stats.offload_dropped_queue_total,
            ("tier_full",): stats.offload_dropped_full_total,
        },
    )
    yield from _labelled(
        "errors",
        "Pages of a tier that could not be used, and were computed again.",
        ["tier", "kind"],
        name,
        {(_HOST, "checksum"): stats.offload_checksum_errors_total},
    )
    yield from _copies(stats, name)


def _copies(stats: StatsBody, name: str) -> Iterator[Metric]:
    values = {
        "load_bytes": ("Bytes read from tiers, of one rank.", stats.offload_load_bytes_total),
        "load_seconds": ("Seconds of these copies.", stats.offload_load_seconds_total),
        "store_bytes": ("Bytes written to tiers, of one rank.", stats.offload_store_bytes_total),
        "store_seconds": ("Seconds of these copies.", stats.offload_store_seconds_total),
    }
    for key, (text, value) in values.items():
        counter = CounterMetricFamily(f"atom:kv_offload_{key}", text, labels=["model_name"])
        counter.add_metric([name], value)
        yield counter


def _images(stats: StatsBody, name: str) -> Iterator[Metric]:
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
    items = CounterMetricFamily(
        "atom:mm_items", "Items other than text in prompts.", labels=["model_name", "kind"]
    )
    items.add_metric([name, "image"], stats.image_items_total)
    yield items
    seconds = SummaryMetricFamily(
        "atom:mm_encoder_seconds", "Seconds that images took to encode.", labels=["model_name"]
    )
    seconds.add_metric([name], stats.images_encoded_total, stats.encoder_seconds_total)
    yield seconds
    for key, (help_text, value) in values.items():
        counter = CounterMetricFamily(f"atom:{key}", help_text, labels=["model_name"])
        counter.add_metric([name], value)
        yield counter


def _labelled(
    key: str, text: str, labels: list[str], name: str, counts: dict[tuple[str, ...], int]
) -> Iterator[Metric]:
    counter = CounterMetricFamily(f"atom:kv_offload_{key}", text, labels=["model_name", *labels])
    for values, count in counts.items():
        counter.add_metric([name, *values], count)
    yield counter


def _expert_balance(stats: StatsBody, name: str) -> Iterator[Metric]:
    gauge = GaugeMetricFamily(
        "atom:expert_balance_ratio",
        "Tokens of the mean rank's experts by those of the rank with the most, in the last window.",
        labels=["model_name"],
    )
    gauge.add_metric([name], stats.expert_tokens_mean / stats.expert_tokens_most)
    yield gauge
    counter = CounterMetricFamily(
        "atom:expert_moves", "Slots whose expert was changed.", labels=["model_name"]
    )
    counter.add_metric([name], stats.expert_moves_total)
    yield counter


def _accepted_by_position(stats: StatsBody, name: str) -> Metric:
    counter = CounterMetricFamily(
        "atom:spec_decode_num_accepted_tokens_per_pos",
        "Drafts of which the token at this position held, from 0.",
        labels=["model_name", "position"],
    )
    for position, value in enumerate(stats.accepted_at_totals):
        counter.add_metric([name, str(position)], value)
    return counter


def _histogram(metric: str, help_text: str, values: Histogram, name: str) -> Metric:
    family = HistogramMetricFamily(metric, help_text, labels=["model_name"])
    buckets = [
        ("+Inf" if bound == float("inf") else str(bound), count)
        for bound, count in values.cumulative()
    ]
    family.add_metric([name], buckets, sum_value=values.total)
    return family


_CLIENT_GAUGES = {
    "waiting": ("client_requests_waiting", "Requests of a client that have no token yet."),
    "running": ("client_requests_running", "Requests of a client that have one and go on."),
}
_CLIENT_COUNTERS = {
    "requests": ("client_requests", "Requests of a client that came."),
    "prompt_tokens": ("client_prompt_tokens", "Prompt tokens of a client's requests that ended."),
    "generation_tokens": ("client_generation_tokens", "Tokens generated for these."),
    "queue_seconds": (
        "client_queue_seconds",
        "Seconds from the arrival of these to the step that began with their prompts.",
    ),
}


def _client_metrics(clients: Mapping[str, ClientCounts], name: str) -> Iterator[Metric]:
    """Yield the metrics by client under separate names, as for ranks. A client's counters restart
    when it returns after another took its place; its old counts are in `other`."""
    labels = ["model_name", "client"]
    for field, (key, help_text) in _CLIENT_GAUGES.items():
        gauge = GaugeMetricFamily(f"atom:{key}", help_text, labels=labels)
        for client, counts in sorted(clients.items()):
            gauge.add_metric([name, client], getattr(counts, field))
        yield gauge
    for field, (key, help_text) in _CLIENT_COUNTERS.items():
        counter = CounterMetricFamily(f"atom:{key}", help_text, labels=labels)
        for client, counts in sorted(clients.items()):
            counter.add_metric([name, client], getattr(counts, field))
        yield counter
