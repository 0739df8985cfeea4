"""Show figures beside an answer: the load on one device fewer, and a goodput that was measured.

Reads the file of a sweep that `atom bench serve --save-result` wrote; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.advisor.errors import AdviceError
from atom.advisor.question import Question
from atom.advisor.rows import Row
from atom.bounded_input.bounded_json import SETTINGS, BoundedJsonError, read_json_file
from atom.entrypoints.bench.charts.chart import Series

_RATE, _GOODPUT = "request_rate", "request_goodput"


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows and points beside an answer. fewer: on one device fewer, None if no form has fewer;
    measured: the goodput of a server by rate; asks_fewer: one device fewer is of interest."""

    fewer: Row | None = None
    measured: Series | None = None
    asks_fewer: bool = False


NOTHING = Beside()


def served_in_time(question: Question, row: Row) -> float:
    """Return the requests per second of the load that a row answers within the targets."""
    figures = row.figures
    kept = figures.kept * figures.request_rate * row.pods / figures.pods
    return min(question.load.rate, kept)


def cost_of_fewer(question: Question, chosen: Row, fewer: Row | None) -> Iterator[str]:
    """Yield sentences on one device fewer. fewer: None if no form has fewer."""
    if fewer is None:
        yield f"one device fewer: {chosen.label} has {chosen.devices}, and no form of it has fewer"
        return
    rate = question.load.rate
    served = served_in_time(question, fewer)
    yield (
        f"one device fewer: {fewer.label} ({fewer.devices} of {chosen.devices} devices) answers "
        f"{served:,.3g} of {rate:,.3g} requests/s within {question.slo} ({served / rate:.0%})"
    )
    if fewer.misses:
        yield f"  it misses {', '.join(map(str, fewer.misses))}"
    if chosen.hourly is not None and fewer.hourly is not None:
        yield f"  it saves {chosen.hourly - fewer.hourly:,.4g} an hour"


def fewer_object(question: Question, fewer: Row) -> dict[str, Any]:
    """Return the figures of one device fewer, for JSON."""
    return {
        "form": fewer.label,
        "devices": fewer.devices,
        "requestsInTime": served_in_time(question, fewer),
        "costPerHour": fewer.hourly,
        "misses": {miss.metric.value: miss.seconds for miss in fewer.misses},
    }


def read_measured(path: Path) -> Series:
    """Read the goodput of a run or of a sweep over rates. Raises AdviceError."""
    where = f"--measured {path}"
    try:
        found = read_json_file(path, SETTINGS)
    except (OSError, BoundedJsonError) as error:
        raise AdviceError(
            f"{where}: cannot be read ({error}); give the file of atom bench serve --save-result"
        ) from error
    points = found.get("points", [found]) if isinstance(found, dict) else None
    if not isinstance(points, list) or not points:
        raise AdviceError(f"{where}: has no run; give the file of atom bench serve --save-result")
    return Series("measured", tuple(sorted(_point(each, where) for each in points)))


def _point(report: object, where: str) -> tuple[float, float]:
    values = [_number(report, field) for field in (_RATE, _GOODPUT)]
    rate, goodput = values
    if rate is None:
        raise AdviceError(
            f"{where}: a run has no {_RATE} in requests per second; measure with --request-rate, "
            f"of a trace with --no-self-timed, too"
        )
    if goodput is None:
        raise AdviceError(
            f"{where}: a run has no {_GOODPUT}; measure with --goodput and the targets of --slo, "
            f"such as --goodput ttft:2000 itl:50"
        )
    return rate, goodput


def _number(report: object, field: str) -> float | None:
    value = report.get(field) if isinstance(report, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < float("inf") else None  # type: ignore[operator,arg-type]
