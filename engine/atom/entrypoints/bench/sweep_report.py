"""Sweep: prints what it found: a row for each load, a chart of goodput against it, and the best
of them.

Pure but for `print_sweep`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from atom.entrypoints.bench.charts.chart import Chart, Series
from atom.entrypoints.bench.charts.text_chart import text_chart
from atom.entrypoints.bench.report_options import ReportOptions
from atom.entrypoints.bench.serving_report import print_failures

VARIABLES = {
    "request_rate": "requests sent per second",
    "max_concurrency": "most requests in flight",
}
_SHORT = {"request_rate": "rate", "max_concurrency": "in flight"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reports of one run for each value. variable: the field of a report that differs, of
    VARIABLES."""

    variable: str
    reports: Sequence[Mapping[str, Any]]
    options: ReportOptions

    @property
    def measure(self) -> str:
        """Name the field to maximise: requests within bounds, or all if there are no bounds."""
        return "request_throughput" if self.options.goodput is None else "request_goodput"

    @property
    def best(self) -> Mapping[str, Any]:
        """Return the run with the most, and of several the one with the least load."""
        return max(self.reports, key=lambda report: (report[self.measure], -report[self.variable]))


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep's JSON, for the last line of standard output and the saved file."""
    return {"sweep": sweep.variable, "points": list(sweep.reports)}


def sweep_chart(sweep: Sweep) -> Chart:
    ordered = sorted(sweep.reports, key=lambda report: report[sweep.variable])

    def line(name: str, field: str) -> Series:
        return Series(name, tuple((each[sweep.variable], each[field]) for each in ordered))

    lines = [line("answered", "request_throughput")]
    bounds = ""
    if sweep.options.goodput is not None:
        lines.insert(0, line("goodput", "request_goodput"))
        kept = (f"{metric} ≤ {limit:g} ms" for metric, limit in sweep.options.goodput.items())
        bounds = f", goodput within {', '.join(kept)}"
    if sweep.variable == "request_rate":
        most = ordered[-1][sweep.variable]
        lines.append(Series("sent", ((0.0, 0.0), (most, most)), is_reference=True))
    return Chart(
        f"{sweep.reports[0]['model_id']}{bounds}",
        VARIABLES[sweep.variable],
        "requests per second",
        tuple(lines),
    )


def print_sweep(title: str, sweep: Sweep) -> None:
    """Print a table and a chart for people, then all reports as one JSON object on the last
    line."""
    print(title)
    print(_table(sweep))
    print(text_chart(sweep_chart(sweep)))
    best = sweep.best
    what = "goodput" if sweep.options.goodput is not None else "throughput"
    print(
        f"highest {what}: {best[sweep.measure]:g} requests/s, at "
        f"{best[sweep.variable]:g} {VARIABLES[sweep.variable]}"
    )
    if sweep.options.goodput is None:
        print("for a line of goodput, say what a good answer is: --goodput ttft:500 tpot:50")
    for report in sweep.reports:
        print_failures(Console(), report)
    print(json.dumps(sweep_json(sweep)), flush=True)


def _table(sweep: Sweep) -> str:
    """Align the columns of a table, whose lines no terminal width cuts."""
    columns = {_SHORT[sweep.variable]: sweep.variable, **_columns(sweep)}
    rows = [list(columns)]
    rows += [[f"{report[key]:,.5g}" for key in columns.values()] for report in sweep.reports]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _columns(sweep: Sweep) -> dict[str, str]:
    """Map the table's headers to fields: latencies, in milliseconds, by their first and last
    percentile."""
    columns = {"answered/s": "request_throughput"}
    if sweep.options.goodput is not None:
        columns["goodput/s"] = "request_goodput"
    columns["tokens/s"] = "output_throughput"
    ends = dict.fromkeys((sweep.options.percentiles[0], sweep.options.percentiles[-1]))
    for metric in sweep.options.metrics:
        for percent in ends:
            columns[f"{metric} p{percent:g}"] = f"p{percent:g}_{metric}_ms"
    columns["failed"] = "failed"
    return columns
