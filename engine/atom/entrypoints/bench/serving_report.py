"""What clients of a server felt: rates, latencies and failures of many exchanges.

Pure but for `print_serving_report`. Keys are those that `vllm bench serve` saves, so that what
reads one reads the other. Used by `atom bench serve` and benchmarks/served.py.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from atom.entrypoints.bench.exchange import Exchange
from atom.entrypoints.bench.report import percentile
from atom.entrypoints.bench.report_options import METRICS, ReportOptions

_KINDS_OF_FAILURE_SHOWN = 3
_MOST_CHARACTERS = 200


def serving_report(
    exchanges: Sequence[Exchange], elapsed_seconds: float, options: ReportOptions
) -> dict[str, Any]:
    """Report counts, duration in seconds and throughputs per second of the requests that were
    answered in full."""
    good = [exchange for exchange in exchanges if exchange.error is None]
    inputs = sum(exchange.input_tokens for exchange in good)
    outputs = sum(exchange.output_tokens for exchange in good)
    report: dict[str, Any] = {
        "completed": len(good),
        "failed": len(exchanges) - len(good),
        "duration": round(elapsed_seconds, 4),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": round(len(good) / elapsed_seconds, 4),
        "output_throughput": round(outputs / elapsed_seconds, 3),
        "total_token_throughput": round((inputs + outputs) / elapsed_seconds, 3),
    }
    cached = [each.cached_tokens for each in good if each.cached_tokens is not None]
    if cached:
        report["total_cached_tokens"] = sum(cached)
    if options.goodput is not None:
        kept = sum(_keeps(exchange, options.goodput) for exchange in good)
        report["request_goodput"] = round(kept / elapsed_seconds, 4)
    for name in options.metrics:
        milliseconds = [1000 * value for exchange in good for value in _values(exchange, name)]
        report |= _summary(name, milliseconds, options.percentiles)
    errors = Counter(
        exchange.error[:_MOST_CHARACTERS] for exchange in exchanges if exchange.error is not None
    )
    if errors:
        report["errors"] = dict(errors.most_common(_KINDS_OF_FAILURE_SHOWN))
    return report


def detailed(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """Return a list with an entry for each request, of everything that was measured; seconds."""
    return {
        "input_lens": [each.input_tokens for each in exchanges],
        "output_lens": [each.output_tokens for each in exchanges],
        "start_times": [each.start_seconds for each in exchanges],
        "ttfts": [each.ttft_seconds for each in exchanges],
        "itls": [each.gaps_seconds for each in exchanges],
        "latencies": [each.e2e_seconds for each in exchanges],
        "generated_texts": [each.text for each in exchanges],
        "errors": [each.error or "" for each in exchanges],
    }


def _values(exchange: Exchange, metric: str) -> list[float]:
    """Return a metric's values in seconds; a request has one of each except gaps, of which it has
    many."""
    if metric == "itl":
        return exchange.gaps_seconds
    if metric == "tpot":
        return [] if exchange.tpot_seconds is None else [exchange.tpot_seconds]
    return [exchange.ttft_seconds if metric == "ttft" else exchange.e2e_seconds]


def _keeps(exchange: Exchange, bounds: Mapping[str, float]) -> bool:
    """Return whether a request stayed within every bound; of gaps the longest counts."""
    return all(
        1000 * max(_values(exchange, metric), default=0.0) <= bound
        for metric, bound in bounds.items()
    )


def _summary(
    name: str, milliseconds: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    values = {
        f"mean_{name}_ms": statistics.fmean(milliseconds) if milliseconds else 0.0,
        f"median_{name}_ms": percentile(milliseconds, 50),
        f"std_{name}_ms": statistics.pstdev(milliseconds) if milliseconds else 0.0,
    }
    for percent in percentiles:
        values[f"p{percent:g}_{name}_ms"] = percentile(milliseconds, percent)
    return {key: round(value, 3) for key, value in values.items()}


def print_serving_report(title: str, report: Mapping[str, Any], options: ReportOptions) -> None:
    """Print tables for people, then the report as one JSON object on the last line."""
    console = Console()
    facts = Table(title=title, show_header=False, title_justify="left")
    facts.add_column()
    facts.add_column(justify="right")
    for key, value in report.items():
        if not key.endswith("_ms") and key != "errors":
            facts.add_row(key, f"{value:,.2f}" if isinstance(value, float) else str(value))
    console.print(facts)
    columns = ["mean", "median", "std", *(f"p{percent:g}" for percent in options.percentiles)]
    latencies = Table("milliseconds", title_justify="left")
    for column in columns:
        latencies.add_column(column, justify="right")
    for name in options.metrics:
        cells = [f"{report[f'{column}_{name}_ms']:,.2f}" for column in columns]
        latencies.add_row(f"{name}: {METRICS[name]}", *cells)
    console.print(latencies)
    print_failures(console, report)
    print(json.dumps(report), flush=True)


def print_failures(console: Console, report: Mapping[str, Any]) -> None:
    """Print the most frequent messages of failed requests, each with its count."""
    for error, count in report.get("errors", {}).items():
        console.print(f"{count} failed: {error}", markup=False)
