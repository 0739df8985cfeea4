"""Optional kinds of children to look for: the requested ones, and those that may be left over.

An AtomDeployment may own objects of eight more kinds. Listing each of them at every reconcile would
cost more than all the rest, so found and written kinds are remembered. The first look, and then one
an hour, finds the owners of a kind by one list for all AtomDeployments together. An interrupted
pass may have left any kind: the next one looks for all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from atom_operator.domain import ChildKey, ObjectKey
from atom_operator.kinds import OPTIONAL_KINDS, Kind

_FRESH_SECONDS = 3600.0
_SURVEY_SECONDS = 60.0
_LEFT_OVER = frozenset(OPTIONAL_KINDS)

# The AtomDeployments that objects of a kind refer to; empty if it is not served.
Holders = Callable[[Kind], Awaitable[Set[ObjectKey]]]


@dataclass(frozen=True, slots=True)
class Look:
    """The kinds to list in one pass, in the order of creation."""

    kinds: tuple[Kind, ...]
    fresh_until: float


class OptionalKinds:
    """Remembers which optional kinds a deployment has. `monotonic` is a clock in seconds. Without
    `holders` every first look is at every kind."""

    def __init__(
        self, holders: Holders | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._holders = holders
        self._monotonic = monotonic
        self._known: dict[ObjectKey, tuple[float, Set[Kind]]] = {}
        self._under_way: set[ObjectKey] = set()
        self._survey: Mapping[Kind, Set[ObjectKey]] = {}
        self._survey_until = float("-inf")
        self._lock = asyncio.Lock()

    def forget_all(self) -> None:
        """Forget everything at a new term: another replica may have written since."""
        self._known.clear()
        self._under_way.clear()
        self._survey_until = float("-inf")

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._known.pop(key, None)
        self._under_way.discard(key)

    async def begin(self, key: ObjectKey, asked: Set[Kind]) -> Look:
        """Return the kinds to look for now; raises ClusterError."""
        until, held = self._known.pop(key, (float("-inf"), _LEFT_OVER))
        now = self._monotonic()
        if now >= until:
            until = now + _FRESH_SECONDS
            held = _LEFT_OVER if key in self._under_way else await self._held_by(key)
        self._under_way.add(key)
        return Look(tuple(kind for kind in OPTIONAL_KINDS if kind in asked or kind in held), until)

    def remember(self, key: ObjectKey, look: Look, owned: Iterable[ChildKey]) -> None:
        """Record the existing kinds at the end of a complete pass."""
        held = frozenset(child.kind for child in owned if child.kind in OPTIONAL_KINDS)
        self._known[key] = (look.fresh_until, held)
        self._under_way.discard(key)

    async def _held_by(self, key: ObjectKey) -> Set[Kind]:
        if self._holders is None:
            return _LEFT_OVER
        async with self._lock:
            if self._monotonic() >= self._survey_until:
                now = self._monotonic()  # later changes are not in the answer
                self._survey = {kind: await self._holders(kind) for kind in OPTIONAL_KINDS}
                self._survey_until = now + _SURVEY_SECONDS
            return {kind for kind, keys in self._survey.items() if key in keys}
