"""What every benchmark prints: a table for people, then one JSON object as the last line.

Also the few statistics they share. Pure but for `print_report`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

Value = int | float | str


def percentile(values: Sequence[float], percent: float) -> float:
    """Compute a percentile by linear interpolation; 0.0 of no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    lower = int(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (position - lower)


def latency_summary(name: str, seconds: Sequence[float]) -> dict[str, Value]:
    """Compute mean, p50 and p99 in milliseconds."""
    milliseconds = [value * 1000 for value in seconds]
    mean = sum(milliseconds) / len(milliseconds) if milliseconds else 0.0
    return {
        f"{name}_mean_ms": round(mean, 3),
        f"{name}_p50_ms": round(percentile(milliseconds, 50), 3),
        f"{name}_p99_ms": round(percentile(milliseconds, 99), 3),
    }


def print_report(title: str, values: Mapping[str, Value]) -> None:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, value in values.items():
        text = f"{value:,.2f}" if isinstance(value, float) else str(value)
        table.add_row(name, text)
    Console().print(table)
    print(json.dumps(values), flush=True)
