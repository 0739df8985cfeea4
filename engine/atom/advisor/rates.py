"""Rates: the share of a card's peaks that operations reach, and the further seconds of steps.

A table is measured on a card (`python -m benchmarks.gpu --rates FILE`), and lies in
`atom/sizing/rates/`, one file a card. A card without a table borrows that of a card of the same
vendor (transported), and without one has assumed rates (physics); either widens the error. The
error of a table is that of steps of a shape that its fit has not seen. Reads files; no clock.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol

import msgspec

from atom.advisor.errors import AdviceError
from atom.advisor.operations import HostWork, Operation
from atom.advisor.partitions import part_of, whole_and_mode
from atom.sizing.cards import CARDS, Card, Precision, Vendor

PROTOCOL = 1
# Assumed of a card that no table is of: what this engine reaches on an H200, rounded. Published
# figures of AMD cards were not used (benchmarks.advice.published compares them).
_ASSUMED_SHARE = {
    Operation.MATRICES: ((1.0, 0.85), (256.0, 0.8), (4096.0, 0.6)),
    # Of the 8B in MXFP4 (docs/results/gpu/figures.md), steps of 1 and 64 rows.
    Operation.PACKED: ((1.0, 0.3), (64.0, 0.25)),
    Operation.UNPACKING: ((1.0, 0.85),),
    Operation.QUANTISING: ((1.0, 0.5),),
    Operation.EXPERTS: ((1.0, 0.75), (16.0, 0.75), (256.0, 0.45)),
    Operation.HEAD: ((1.0, 0.5),),
    Operation.DECODE_ATTENTION: ((1.0, 0.5), (64.0, 0.85)),
    Operation.PROMPT_ATTENTION: ((128.0, 0.25), (4096.0, 0.5)),
    Operation.STATES: ((1.0, 0.4),),
    Operation.COLLECTIVES: ((1.0, 0.2), (64.0, 0.35), (1024.0, 0.7)),
}
# Of the published figures of AMD cards, nine of ten are so near (docs/results/advice.md).
_ASSUMED_ERROR = 0.9
_TRANSPORTED_FACTOR, _TRANSPORTED_MORE = 2.0, 0.1


class Evidence(enum.StrEnum):
    """The source of rates: a table of this card, a table of a card of its vendor, or none."""

    MEASURED = "measured"
    TRANSPORTED = "transported"
    PHYSICS = "physics"


@dataclass(frozen=True, slots=True)
class Curve:
    """The share of a peak by the rows that an operation has; between two points, the time changes
    evenly with the logarithm of the rows."""

    points: tuple[tuple[float, float], ...]

    def share(self, width: float) -> float:
        """Return the share at so many rows; beyond the ends, that of the end."""
        return 1.0 / self._slowness(width)

    def _slowness(self, width: float) -> float:
        points = self.points
        at = bisect_left(points, (width,))
        if at == 0:
            return 1.0 / points[0][1]
        if at == len(points):
            return 1.0 / points[-1][1]
        (before, low), (after, high) = points[at - 1], points[at]
        part = math.log(width / before) / math.log(after / before)
        return (1.0 - part) / low + part / high


class StepSeconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds beside operations: of each step, of each of a model's layers in it, of each decode
    row and of each prompt in it; request: of a server, before a request's first step, and accept:
    of these, in which it takes no other one; token: of a server, until a client has a token;
    prepare, launch: of a GPU's host, for the inputs of a step with prompts, and for each layer of
    one that no graph holds; launch_experts, launch_quantised, launch_sum, launch_mixed: further
    ones of such a step, for each layer with experts, quantised product, sum of ranks, and layer if
    it has prompts and answers; adapter: for each layer of a step with adapters, beside their bytes
    (0: not measured)."""

    step: float = 0.0
    layer: float = 0.0
    row: float = 0.0
    prompt: float = 0.0
    request: float = 0.0
    token: float = 0.0
    prepare: float = 0.0
    launch: float = 0.0
    adapter: float = 0.0
    accept: float = 0.0
    launch_experts: float = 0.0
    launch_quantised: float = 0.0
    launch_sum: float = 0.0
    launch_mixed: float = 0.0

    def of_host(self, work: HostWork) -> float:
        """Return the seconds in which a host launches a step op by op; 0 if not measured."""
        return (
            self.launch * work.layers
            + self.launch_experts * work.experts
            + self.launch_quantised * work.quantised
            + self.launch_sum * work.sums
            + self.launch_mixed * work.mixed
        )


class StepError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The relative error of steps of a shape that was left out of the fit."""

    median: float
    p90: float


class RatesSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describe a measurement: its date, device and versions, and how many steps of which shapes;
    load: of the machine in processes, if it was not idle."""

    date: str
    device: str
    versions: dict[str, str]
    shapes: list[str]
    steps: int
    load: float = 0.0


class RatesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as a file has it. efficiencies: by operation, [rows, share of the peak];
    host_bytes_per_second: of copies of pages between device and host, 0 if not measured."""

    protocol: int
    card: str
    bytes_per_second: float
    flops: dict[str, float]
    efficiencies: dict[str, list[tuple[float, float]]]
    seconds: StepSeconds
    error: StepError
    source: RatesSource
    memory_bytes: int = 0
    host_bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates to predict a card's steps by. error: the relative error to expect of a step; of:
    the card that was measured, "" for none; host_bytes_per_second: of copies of pages between a
    device and its host, by default 16 lanes of PCIe 5, of which copies reach four fifths."""

    shares: Mapping[Operation, Curve]
    seconds: StepSeconds
    error: float
    evidence: Evidence
    of: str = ""
    host_bytes_per_second: float = 50e9

    def share(self, operation: Operation, width: float) -> float:
        return self.shares[operation].share(width)


ASSUMED = Rates(
    {operation: Curve(points) for operation, points in _ASSUMED_SHARE.items()},
    StepSeconds(
        step=1e-4,
        layer=1.4e-5,
        row=1e-6,
        prompt=2e-4,
        request=5e-3,
        token=2e-4,
        # Of ADR 39: 960 tokens took 3.4 ms by a graph, of which the device worked 2.4; launched op
        # by op 10 to 19 ms, in models of 28 to 36 layers.
        prepare=1e-3,
        # A layer has five kernels of Triton, which its host is busy with for longer than with a
        # library's products: two norms, keys and values, attention, activation. Experts have seven
        # more (logits, choice, two of the order, two products, sum); the others have one more.
        launch=5e-4,
        launch_experts=7e-4,
        launch_quantised=1e-4,
        launch_sum=1e-4,
        launch_mixed=1e-4,
        # Of an 8B with adapters (docs/results/gpu/lora.md): 7 us a layer at one row, 35 at 64.
        adapter=3.5e-5,
    ),
    _ASSUMED_ERROR,
    Evidence.PHYSICS,
)


class Place(Protocol):
    """A folder or file of a table, in the package or on a disk."""

    @property
    def name(self) -> str: ...

    def read_bytes(self) -> bytes: ...


def read_table(place: Place) -> RatesFile:
    """Read and check a table. Raises AdviceError with the file and the field."""
    try:
        table = msgspec.json.decode(place.read_bytes(), type=RatesFile)
    except (OSError, msgspec.DecodeError) as error:
        raise AdviceError(
            f"{place}: is no table of rates ({error}); write one with "
            "python -m benchmarks.gpu --rates FILE"
        ) from error
    for problem in _problems(table):
        raise AdviceError(f"{place}: {problem}; measure the card again")
    return table


def _problems(table: RatesFile) -> list[str]:
    problems = []
    if table.protocol != PROTOCOL:
        problems.append(f"protocol {table.protocol} is not {PROTOCOL}")
    known = {each.value for each in Operation}
    problems += [
        f"efficiencies: no operation {name!r}" for name in table.efficiencies if name not in known
    ]
    for name, points in table.efficiencies.items():
        widths = [width for width, _ in points]
        if (
            not points
            or widths != sorted(set(widths))
            or not all(w > 0 and e > 0 for w, e in points)
        ):
            problems.append(f"efficiencies.{name}: rows must rise, and shares must be above 0")
    if not table.bytes_per_second > 0 or not all(each > 0 for each in table.flops.values()):
        problems.append("bytes_per_second and flops must be above 0")
    if Precision.WIDE not in table.flops:
        problems.append("flops: wide is missing")
    return problems


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables that are known, by card."""

    by_card: Mapping[str, RatesFile]

    @classmethod
    def of(cls, *folders: Path | Traversable) -> Tables:
        """Read the tables of folders; a later folder's replace an earlier one's. Raises
        AdviceError."""
        found: dict[str, RatesFile] = {}
        for folder in folders:
            if not folder.is_dir():
                raise AdviceError(f"{folder}: is no folder of tables; give a folder with *.json")
            places = sorted(folder.iterdir(), key=lambda each: each.name)
            for place in places:
                if place.name.endswith(".json"):
                    table = read_table(place)
                    found[table.card] = table
        return cls(found)

    @classmethod
    def packaged(cls, *more: Path) -> Tables:
        """Read the tables that the package has, and those of other folders."""
        return cls.of(files("atom.sizing").joinpath("rates"), *more)

    def card(self, name: str) -> Card | None:
        """Return a card by its name: of the catalogue, a part of one, or as its table describes it;
        None if it is unknown."""
        whole, mode = whole_and_mode(name)
        if mode:
            return part_of(CARDS[whole], mode) if whole in CARDS else None
        table = self.by_card.get(name)
        if name in CARDS or table is None:
            return CARDS.get(name)
        peaks = {Precision(key): value for key, value in table.flops.items()}
        return Card(
            name=name,
            vendor=Vendor.CPU,
            memory_bytes=table.memory_bytes,
            bytes_per_second=table.bytes_per_second,
            flops=peaks,
        )

    def rates(self, card: Card, ranks: int = 1) -> Rates:
        """Return the rates of a card, the best that is known. ranks: that share a model; if their
        sums were not measured, those are assumed."""
        own = self.by_card.get(card.name)
        if own is not None:
            rates = _rates(own, card, Evidence.MEASURED)
            if ranks > 1 and Operation.COLLECTIVES.value not in own.efficiencies:
                wider = _TRANSPORTED_FACTOR * rates.error + _TRANSPORTED_MORE
                return replace(rates, error=wider, evidence=Evidence.TRANSPORTED)
            return rates
        near = self._nearest(card)
        if near is None:
            return ASSUMED
        rates = _rates(near, CARDS[near.card], Evidence.TRANSPORTED)
        wider = _TRANSPORTED_FACTOR * rates.error + _TRANSPORTED_MORE
        return replace(rates, error=min(wider, _ASSUMED_ERROR))

    def _nearest(self, card: Card) -> RatesFile | None:
        """Return the table of the vendor's card whose bandwidth is nearest."""
        same = [
            table
            for name, table in sorted(self.by_card.items())
            if name in CARDS and CARDS[name].vendor is card.vendor
        ]
        distance = card.bytes_per_second
        return min(
            same,
            key=lambda table: abs(math.log(table.bytes_per_second / distance)),
            default=None,
        )


def _rates(table: RatesFile, card: Card, evidence: Evidence) -> Rates:
    """Read a table as shares of a card's published peaks, whatever peaks it was written with."""
    bandwidth = table.bytes_per_second / card.bytes_per_second
    curves = dict(ASSUMED.shares)
    for name, points in table.efficiencies.items():
        scaled: Sequence[tuple[float, float]] = [(width, e * bandwidth) for width, e in points]
        curves[Operation(name)] = Curve(tuple(scaled))
    rates = Rates(curves, table.seconds, table.error.p90, evidence, table.card)
    if table.host_bytes_per_second:
        return replace(rates, host_bytes_per_second=table.host_bytes_per_second)
    return rates
