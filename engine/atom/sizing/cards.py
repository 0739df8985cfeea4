"""Cards: the memory, bandwidth and peak products of accelerators, as their makers publish them.

A peak is a ceiling, never a prediction: measured rates say which share of it an engine reaches
(atom.advisor.rates). Data and look-ups only. Sources: AMD's data sheets of Instinct MI100 to
MI355X, and NVIDIA's of H100, H200 and B200; dense products, without sparsity.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_GIB = 1024**3
_TERA, _GIGA = 1e12, 1e9
# Logical devices that one AMD GPU becomes in each compute partition mode (ROCm's names).
PARTITIONS = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}


class Vendor(enum.StrEnum):
    AMD = "amd"
    NVIDIA = "nvidia"
    CPU = "cpu"


class Precision(enum.StrEnum):
    """The numbers that a product multiplies. WIDE: 16-bit floats on a GPU, float32 on a CPU."""

    WIDE = "wide"
    FP8 = "fp8"
    FP4 = "fp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One logical device. memory_bytes: as its driver reports them; bytes_per_second: of reading
    its memory; flops: per second of dense products, by precision; link_bytes_per_second: to the
    other devices of its node, in one direction; watts: the board's power, None if shared."""

    name: str
    vendor: Vendor
    memory_bytes: int
    bytes_per_second: float
    flops: Mapping[Precision, float] = field(default_factory=dict)
    link_bytes_per_second: float = 0.0
    watts: float | None = None

    def flops_per_second(self, precision: Precision) -> float:
        """Return the peak of products of this precision; of a narrower one that the card lacks, the
        peak of the next wider one, as kernels convert before they multiply."""
        order = (Precision.FP4, Precision.FP8, Precision.WIDE)
        for wider in order[order.index(precision) :]:
            if wider in self.flops:
                return self.flops[wider]
        raise ValueError(f"{self.name} has no peak of products; give one of {', '.join(order)}")


class _Sheet(NamedTuple):
    """A line of a data sheet: GiB of memory, terabytes and teraflops per second (wide, fp8, fp4, as
    far as the card has them), gigabytes per second of links, and watts."""

    name: str
    vendor: Vendor
    memory_gib: int
    terabytes: float
    teraflops: tuple[float, ...]
    link_gigabytes: float
    watts: float | None

    def card(self) -> Card:
        peaks = zip(Precision, (each * _TERA for each in self.teraflops), strict=False)
        return Card(
            name=self.name,
            vendor=self.vendor,
            memory_bytes=self.memory_gib * _GIB,
            bytes_per_second=self.terabytes * _TERA,
            flops=dict(peaks),
            link_bytes_per_second=self.link_gigabytes * _GIGA,
            watts=self.watts,
        )


_SHEETS = (
    _Sheet("MI100", Vendor.AMD, 32, 1.2288, (184.6,), 138.0, 300.0),
    _Sheet("MI210", Vendor.AMD, 64, 1.6384, (181.0,), 150.0, 300.0),
    _Sheet("MI250", Vendor.AMD, 64, 1.6384, (181.0,), 200.0, None),
    _Sheet("MI250X", Vendor.AMD, 64, 1.6384, (191.5,), 200.0, None),
    _Sheet("MI300A", Vendor.AMD, 128, 5.3, (980.6, 1961.2), 384.0, 550.0),
    _Sheet("MI300X", Vendor.AMD, 192, 5.3, (1307.4, 2614.9), 448.0, 750.0),
    _Sheet("MI325X", Vendor.AMD, 256, 6.0, (1307.4, 2614.9), 448.0, 1000.0),
    _Sheet("MI350X", Vendor.AMD, 288, 8.0, (2306.9, 4613.7, 9227.5), 537.6, 1000.0),
    _Sheet("MI355X", Vendor.AMD, 288, 8.0, (2516.6, 5033.2, 10066.3), 537.6, 1400.0),
    _Sheet("H100", Vendor.NVIDIA, 79, 3.35, (989.4, 1978.9), 450.0, 700.0),
    _Sheet("H200", Vendor.NVIDIA, 139, 4.8, (989.4, 1978.9), 450.0, 700.0),
    _Sheet("B200", Vendor.NVIDIA, 178, 8.0, (2250.0, 4500.0, 9000.0), 900.0, 1000.0),
)
CARDS: Mapping[str, Card] = {sheet.name: sheet.card() for sheet in _SHEETS}


def card_of_device(name: str) -> Card | None:
    """Return the card of a device by the name that its driver gives, such as `NVIDIA H200`; None
    for a device of another kind."""
    words = name.upper().replace("_", " ").split()
    return next((card for card in CARDS.values() if card.name in words), None)
