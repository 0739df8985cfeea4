"""Which optional kinds of children to look for: those asked for, and those that may be left over.

An AtomDeployment may own objects of eight more kinds. Listing each of them at every reconcile would
cost more than all the rest, so what was found and written is remembered; the first look at an
AtomDeployment, and one every hour, covers every kind. Forgotten while a pass is under way: one that
is cut off leaves nothing that the next does not look for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from atom_operator.domain import ChildKey, ObjectKey
from atom_operator.kinds import OPTIONAL_KINDS, Kind

_FRESH_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Look:
    """The kinds to list in one pass, in the order of creation."""

    kinds: tuple[Kind, ...]
    fresh_until: float


class OptionalKinds:
    """`monotonic` is a clock in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: dict[ObjectKey, tuple[float, frozenset[Kind]]] = {}

    def forget_all(self) -> None:
        """A new term: another replica may have written since."""
        self._known.clear()

    def begin(self, key: ObjectKey, asked: Set[Kind]) -> Look:
        """What to look for now; what was known is forgotten until `remember`."""
        until, held = self._known.pop(key, (float("-inf"), frozenset()))
        now = self._monotonic()
        if now >= until:
            return Look(OPTIONAL_KINDS, now + _FRESH_SECONDS)
        kinds = tuple(kind for kind in OPTIONAL_KINDS if kind in asked or kind in held)
        return Look(kinds, until)

    def remember(self, key: ObjectKey, look: Look, owned: Iterable[ChildKey]) -> None:
        """The pass is complete, and this is what exists."""
        held = frozenset(child.kind for child in owned if child.kind in OPTIONAL_KINDS)
        self._known[key] = (look.fresh_until, held)
