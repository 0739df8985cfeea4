"""The plan of an array's items: the first ones, each with its own schema, and the rest. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atom.structured_outputs.json_schema.cases import Conjunction, Items, join


@dataclass(frozen=True, slots=True)
class ItemPlan:
    """A plan of low to high items: first those of the prefix, then any number of the rest. least:
    the number that the schema requires; low counts the whole prefix."""

    prefix: tuple[Conjunction, ...]
    rest: Conjunction
    least: int
    low: int
    high: int | None


def plan_items(items: Items, nothing: Callable[[Conjunction], bool]) -> ItemPlan:
    """Plan the items of an array. nothing: returns whether certainly no value fits.

    If no schema constrains further items, the whole prefix is required and no further item allowed.
    """
    longest = max((len(layer.prefix) for layer in items.layers), default=0)
    prefix = tuple(
        join(
            *(layer.prefix[at] if at < len(layer.prefix) else layer.rest for layer in items.layers)
        )
        for at in range(longest)
    )
    rest = join(*(layer.rest for layer in items.layers))
    high = items.high
    if longest and not any(layer.given for layer in items.layers):
        high = _lesser(high, max(longest, items.low))
    for at, one in enumerate(prefix):
        if nothing(one):
            high, prefix = _lesser(high, at), prefix[:at]
            break
    if nothing(rest):
        high = _lesser(high, len(prefix))
    if high is not None:
        prefix = prefix[:high]
    return ItemPlan(prefix, rest, items.low, max(items.low, len(prefix)), high)


def _lesser(bound: int | None, limit: int) -> int:
    return limit if bound is None else min(bound, limit)
