"""Partitions of a card: several models on one GPU, each with its part. Pure.

`MI300X:cpx_nps4` is an eighth of an MI300X in AMD's modes of compute and memory: an eighth of its
memory, bandwidth and products. Links between parts are unknown, so a model takes one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atom.sizing.cards import PARTITIONS, Card, Vendor

MARK = ":"
_MEMORIES = ("nps1", "nps2", "nps4", "nps8")  # the modes of memory (ROCm's names)


def parts_of(mode: str) -> int | None:
    """Return the number of parts of a mode such as cpx_nps4; None for an unknown mode."""
    compute, _, memory = mode.partition("_")
    return PARTITIONS.get(compute) if memory in _MEMORIES else None


def part_of(card: Card, mode: str) -> Card | None:
    """Return one part of a card; None for an unknown mode, and for a card of another vendor."""
    parts = parts_of(mode)
    if parts is None or card.vendor is not Vendor.AMD:
        return None
    return replace(
        card,
        name=f"{card.name}{MARK}{mode}",
        memory_bytes=card.memory_bytes // parts,
        bytes_per_second=card.bytes_per_second / parts,
        flops={precision: peak / parts for precision, peak in card.flops.items()},
        link_bytes_per_second=0.0,
        watts=None if card.watts is None else card.watts / parts,
    )


def whole_and_mode(name: str) -> tuple[str, str]:
    """Divide the name of a card into that of the whole card and the mode; "" for a whole card."""
    whole, _, mode = name.partition(MARK)
    return whole, mode


def price_of(name: str, prices: Mapping[str, float]) -> float | None:
    """Return the price of a card and hour: of a part, its share of the whole card's unless it has
    one; None if it is unknown."""
    whole, mode = whole_and_mode(name)
    if name in prices or not mode:
        return prices.get(name)
    price, parts = prices.get(whole), parts_of(mode)
    return None if price is None or parts is None else price / parts
