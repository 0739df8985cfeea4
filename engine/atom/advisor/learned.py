"""Learned: how long steps of running deployments take beside the table of their card. Pure.

The operator writes `status.steps` of each AtomDeployment whose card has a measured table. An advice
for the same model and card is corrected by it, within bounds, so that no sick device distorts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from atom.advisor.accelerator import KIND, card_of

# A correction never goes further than this, whatever was seen.
_LEAST, _MOST = 0.5, 2.0
_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Learned:
    """A correction. factor: of the seconds of steps, within bounds; seen: the median before these;
    names: of the AtomDeployments that it is of."""

    factor: float
    seen: float
    names: tuple[str, ...]

    def __str__(self) -> str:
        bounded = "" if self.factor == self.seen else f", taken as {self.factor:.2f}"
        return f"steps take {self.seen:.2f} times the table in {', '.join(self.names)}{bounded}"


# By the source of a model, and the name of a card.
Corrections = Mapping[tuple[str, str], Learned]


def learned_of(objects: Iterable[Mapping[str, Any]]) -> Corrections:
    """Read the corrections of AtomDeployments; those whose card or steps are unknown give none."""
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for each in objects:
        read = _read(each)
        if read is not None:
            key, name, ratio = read
            found.setdefault(key, []).append((name, ratio))
    return {key: _learned(seen) for key, seen in found.items()}


def _read(each: Mapping[str, Any]) -> tuple[tuple[str, str], str, float] | None:
    if each.get("kind") != KIND:
        return None
    spec, metadata = _part(each, "spec"), _part(each, "metadata")
    percent = _part(_part(each, "status"), "steps").get("percentOfTable")
    source, card = _part(spec, "model").get("source"), card_of(spec)
    if card is None or not isinstance(source, str):
        return None
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not percent > 0:
        return None
    name = "/".join(str(metadata[key]) for key in ("namespace", "name") if key in metadata)
    return (source, card), name, percent / _PERCENT


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, Mapping) else {}


def _learned(seen: list[tuple[str, float]]) -> Learned:
    ratio = median([each for _, each in seen])
    factor = min(max(ratio, _LEAST), _MOST)
    return Learned(factor, ratio, tuple(sorted(name for name, _ in seen)))
