"""Draw manifests of AtomDeployments that are odd in one place or in a few, from those that hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

_ODD: tuple[Any, ...] = (
    None, "", "x", "8", "4Gi", "y" * 300, 0, -1, 1, 1.5, 10**7, True, False,
    [], {}, [None], [{}], {"a": None}, {"name": "x"},
)  # fmt: skip
Place = tuple[str | int, ...]


def odd_manifests(bases: Sequence[Mapping[str, Any]], seed: int) -> Iterator[dict[str, Any]]:
    """Yield manifests without end; each is one of `bases` after one to three odd edits below its
    spec, its labels or its top level."""
    draw = random.Random(seed)
    while True:
        manifest: dict[str, Any] = deepcopy(dict(draw.choice(bases)))
        manifest["metadata"].setdefault("labels", {"team": "a"})
        for _ in range(draw.choice((1, 1, 2, 3))):
            _edit(draw, manifest)
        yield manifest


def _edit(draw: random.Random, manifest: dict[str, Any]) -> None:
    places = [
        place
        for place in _places(manifest, ())
        if place[0] == "spec" or place[:2] == ("metadata", "labels")
    ]
    if not places:  # an edit before has removed them all
        return
    *way, last = draw.choice(places)
    holder: Any = manifest
    for step in way:
        holder = holder[step]
    edit = draw.choice(("replace", "replace", "replace", "remove", "rename", "add", "repeat"))
    if edit == "replace":
        holder[last] = deepcopy(draw.choice(_ODD))
    elif edit == "remove":
        del holder[last]
    elif edit == "rename" and isinstance(last, str):
        holder[draw.choice((f"{last}_x", last.lower(), last.title()))] = holder.pop(last)
    elif edit == "add" and isinstance(holder, dict):
        holder[draw.choice(("unknown", "replicas", "name", "image", "template"))] = 1
    elif isinstance(holder, list):
        holder.append(deepcopy(holder[int(last)]))


def _places(node: Any, path: Place) -> Iterator[Place]:
    items: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(node, dict):
        items = iter(node.items())
    elif isinstance(node, list):
        items = iter(enumerate(node))
    for step, child in items:
        yield (*path, step)
        yield from _places(child, (*path, step))
