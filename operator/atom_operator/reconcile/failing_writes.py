"""FailingWrites: since when the writes of an AtomDeployment fail. Pure; asked by the reconciler.

An API server that is busy for moments is not worth a condition. An error that it answers for a
minute (a policy's webhook without endpoints, an object that is too large) is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from atom_operator.domain import ChildKey, ObjectKey

TOLD_AFTER = timedelta(seconds=60)


@dataclass(slots=True)
class _Known:
    """Record the failing writes of one AtomDeployment. pass_since: when a pass first could not
    finish; is_told: an Event reports the failure."""

    children: dict[ChildKey, datetime] = field(default_factory=dict)
    pass_since: datetime | None = None
    is_told: bool = False


class FailingWrites:
    """Remember failing writes for one term; a status that reports a failure keeps it beyond."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, _Known] = {}

    def forget_all(self) -> None:
        """Forget everything at a new term."""
        self._known.clear()

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment whose writes succeed, or that is gone."""
        self._known.pop(key, None)

    def note(
        self, key: ObjectKey, failed: Iterable[ChildKey], now: datetime, *, is_told: bool
    ) -> frozenset[ChildKey]:
        """Note the children that a whole pass could not write; return those that fail for long.
        `is_told`: the status reports a failure already."""
        known = self._known.setdefault(key, _Known())
        known.children = {child: known.children.get(child, now) for child in failed}
        since = known.children.items()
        return frozenset(child for child, time in since if is_told or now - time >= TOLD_AFTER)

    def end_pass(self, key: ObjectKey) -> None:
        """Note that a pass was completed, with a status of its failures."""
        if key in self._known:
            self._known[key].pass_since = None

    def note_pass(self, key: ObjectKey, now: datetime, *, is_told: bool) -> bool:
        """Note that a pass was cut off; return whether this has lasted for long."""
        known = self._known.setdefault(key, _Known())
        known.pass_since = known.pass_since or now
        return is_told or now - known.pass_since >= TOLD_AFTER

    def tell_once(self, key: ObjectKey) -> bool:
        """Return whether no Event has reported the failure yet."""
        known = self._known.setdefault(key, _Known())
        first, known.is_told = not known.is_told, True
        return first
