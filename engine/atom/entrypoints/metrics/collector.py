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
)
from prometheus_client.registry import Collector
from starlette.responses import Response

import atom
from atom.client_figures import ClientCounts
from atom.entrypoints.metric_families import (
    LABELS,
    Counts,
    buckets,
    counter,
    counters,
    gauge,
    labelled_counter,
    labelled_gauge,
)
from atom.entrypoints.metrics.images import image_memory_metrics, image_metrics
from atom.entrypoints.metrics.tiers import tier_metrics
from atom.entrypoints.metrics.transfers import transfer_metrics
from atom.entrypoints.metrics_exchange import ServerNumbers
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.outlook.metrics import OutlookMetrics
from atom.entrypoints.stored_batches.metrics import BatchCollector
from atom.entrypoints.stored_batches.service import BatchService
from atom.metrics import HANDED_OVER, LOST, Histogram, RequestMetrics
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.request import FinishReason
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_engine.wire.rank_answers import add_stats

_REFRESH_HELP = "When the rank that is furthest behind told its numbers, in Unix time."

_EXAMPLE = 'atom:num_requests_running{model_name="MODEL"} 1.0'


def metrics_routes(state: ServerState, batches: BatchService | None = None) -> APIRouter:
    router, outlook = APIRouter(tags=["status"]), OutlookMetrics()
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
        numbers = await state.numbers()
        asked = None if numbers is None else numbers.batch_requests
        text = generate_latest(EngineCollector(state, numbers, outlook))
        text += generate_latest(BatchCollector(batches, asked))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router


class EngineCollector(Collector):
    """Collect the metrics of one server; before the engine exists only those known then."""

    def __init__(
        self, state: ServerState, numbers: ServerNumbers | None, outlook: OutlookMetrics
    ) -> None:
        self._state, self._numbers, self._outlook = state, numbers, outlook

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
                yield gauge(key, help_text, name, engine.stats_told_at)
            yield _weights(engine.pauses.weights_version, name)
            level = engine.pauses.sleep_level
            yield gauge("sleeping", "Level at which the engine sleeps; 0 awake.", name, level)
            if engine.config.sleep.idle_seconds is not None:
                yield from wake_metrics(
                    {name: (engine.requests_held, engine.pauses.wakes_for_requests)}
                )
            yield from _engine_metrics(name, self._numbers)
            by_rank = self._numbers.stats_by_rank
            yield from self._outlook.collect(engine.config, engine.status.report, by_rank)
            told = [each.stats for each in by_rank.values()]
            if engine.config.lora is not None and told:
                yield _lora_requests(engine, add_stats(told))
            if engine.config.cache.kv_transfer is not None and told:
                transfers = self._numbers.requests.transfers
                yield from transfer_metrics(add_stats(told), transfers, name)


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
    yield gauge("metrics_snapshot_available", "1 once the engine has told numbers.", name, told)
    if by_rank:
        stats = add_stats(list(by_rank.values()))
        yield from _gauges(stats, name)
        yield from _counters(stats, name)
    if len(by_rank) > 1:
        yield from _rank_metrics(by_rank, name)
    yield from _request_metrics(numbers.requests, name)
    yield from _client_metrics(numbers.clients, name)
    yield from image_memory_metrics(numbers.images, name)


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
    return labelled_gauge(
        "cache_config_info",
        "The KV cache of a rank, in labels; always 1.",
        name,
        ["block_size", "num_gpu_blocks"],
        {(str(report.block_size), str(report.num_blocks)): 1},
    )


def _weights(version: str, name: str) -> Metric:
    return labelled_gauge(
        "weights_info",
        "Version of the weights that requests begin with, in a label; always 1.",
        name,
        ["weight_version"],
        {(version,): 1},
    )


def _rank_metrics(by_rank: Mapping[int, StatsBody], name: str) -> Iterator[Metric]:
    """Yield the metrics by rank under separate names, so that a sum over a series without `rank`
    counts nothing twice."""
    labels, ranks = ["rank"], sorted(by_rank.items())
    gauges: dict[str, tuple[str, Callable[[StatsBody], float]]] = {
        "rank_requests_running": ("Requests of a rank that generate.", _running),
        "rank_requests_waiting": ("Requests of a rank that wait for room.", _waiting),
        "rank_kv_cache_usage_ratio": ("Share of a rank's KV blocks held, 0 to 1.", _usage_ratio),
    }
    for key, (help_text, value) in gauges.items():
        figures: Counts = {(str(rank),): value(stats) for rank, stats in ranks}
        yield labelled_gauge(key, help_text, name, labels, figures)
    tokens: Counts = {(str(rank),): stats.generation_tokens_total for rank, stats in ranks}
    help_text = "Tokens that a rank generated."
    yield labelled_counter("rank_generation_tokens", help_text, name, labels, tokens)


def _running(stats: StatsBody) -> float:
    return stats.requests_running


def _waiting(stats: StatsBody) -> float:
    return stats.requests_waiting


def _usage_ratio(stats: StatsBody) -> float:
    return stats.kv_blocks_used / max(stats.kv_blocks_total, 1)


def _request_metrics(metrics: RequestMetrics, name: str) -> Iterator[Metric]:
    yield labelled_counter(
        "requests_finished",
        "Requests that ended, by finish reason.",
        name,
        ["finished_reason"],
        # Also those of no request yet: a rate needs its start.
        {(reason,): metrics.finished.get(reason, 0) for reason in FinishReason},
    )
    yield labelled_counter(
        "requests_continued",
        "Answers that went on elsewhere, since what computed them was lost or had to end.",
        name,
        ["cause"],
        {(cause,): metrics.continued.get(cause, 0) for cause in (LOST, HANDED_OVER)},
    )
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
        yield gauge(key, help_text, name, value)


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
    yield from counters(values, name)
    if stats.offload_pages:
        yield from tier_metrics(stats, name)
    yield from image_metrics(stats, name)
    if stats.expert_tokens_most:
        yield from _expert_balance(stats, name)
    if stats.accepted_at_totals:
        yield _accepted_by_position(stats, name)


def _expert_balance(stats: StatsBody, name: str) -> Iterator[Metric]:
    yield gauge(
        "expert_balance_ratio",
        "Tokens of the mean rank's experts by those of the rank with the most, in the last window.",
        name,
        stats.expert_tokens_mean / stats.expert_tokens_most,
    )
    moves = stats.expert_moves_total
    yield counter("expert_moves", "Slots whose expert was changed.", name, moves)


def _accepted_by_position(stats: StatsBody, name: str) -> Metric:
    return labelled_counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafts of which the token at this position held, from 0.",
        name,
        ["position"],
        {(str(position),): value for position, value in enumerate(stats.accepted_at_totals)},
    )


def _histogram(metric: str, help_text: str, values: Histogram, name: str) -> Metric:
    family = HistogramMetricFamily(metric, help_text, labels=LABELS)
    family.add_metric([name], buckets(values), sum_value=values.total)
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
    for families, made in (
        (_CLIENT_GAUGES, labelled_gauge),
        (_CLIENT_COUNTERS, labelled_counter),
    ):
        for field, (key, help_text) in families.items():
            figures: Counts = {
                (client,): getattr(counts, field) for client, counts in sorted(clients.items())
            }
            yield made(key, help_text, name, ["client"], figures)
