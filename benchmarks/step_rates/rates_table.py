"""Write a fit as the table that atom.advisor.rates reads, and say how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from atom.advisor.rates import PROTOCOL, RatesFile, RatesSource
from atom.sizing.cards import Card
from benchmarks.step_rates.fit import Fitted, TimedStep


@dataclass(frozen=True, slots=True)
class TableSource:
    """The place and time of a measurement. load: other processes that ran, on average;
    host_bytes_per_second: of copies of pages between device and host, 0 if not measured."""

    device: str
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    load: float = 0.0
    host_bytes_per_second: float = 0.0


def write_table(
    path: Path, card: Card, fitted: Fitted, steps: Sequence[TimedStep], source: TableSource
) -> RatesFile:
    """Write a table, and print its error."""
    table = RatesFile(
        protocol=PROTOCOL,
        card=card.name,
        bytes_per_second=card.bytes_per_second,
        flops={precision.value: rate for precision, rate in card.flops.items()},
        efficiencies={
            operation.value: [(width, float(f"{share:.4g}")) for width, share in points]
            for operation, points in fitted.shares.items()
        },
        seconds=fitted.seconds,
        error=msgspec.structs.replace(
            fitted.error, median=round(fitted.error.median, 4), p90=round(fitted.error.p90, 4)
        ),
        source=RatesSource(
            date=source.date,
            device=source.device,
            versions=dict(source.versions),
            shapes=sorted({step.name for step in steps}),
            steps=len(steps),
            load=round(source.load, 2),
        ),
        memory_bytes=card.memory_bytes,
        host_bytes_per_second=source.host_bytes_per_second,
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")
    print(
        f"{path}: {len(steps)} steps of {len(table.source.shapes)} shapes; of a shape that the fit "
        f"has not seen, the error is {fitted.error.median:.1%} (median), {fitted.error.p90:.1%} "
        "(9 of 10)"
    )
    return table
