"""Says whose turn it is to begin a rollout: so many AtomDeployments at a time (`maxRollouts`).

Remembered for one term and told by what is observed, so nothing is lost with it but the order of
those that wait. Asked by the reconciler; knows no cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from atom_operator.domain import ObjectKey, Observed


class RolloutBudget:
    """Lets `most` AtomDeployments roll at a time, 0 for any number; `announce` is told whom to
    reconcile when the turn of one has come."""

    def __init__(
        self, most: int = 0, announce: Callable[[ObjectKey], None] = lambda _key: None
    ) -> None:
        self._most = most
        self._announce = announce
        self._unseen: set[ObjectKey] = set()
        self._rolling: set[ObjectKey] = set()
        self._row: dict[ObjectKey, None] = {}  # in the order of asking

    def forget_all(self) -> None:
        """A new term."""
        for known in (self._unseen, self._rolling, self._row):
            known.clear()

    def expect(self, keys: Iterable[ObjectKey]) -> None:
        """Every AtomDeployment there is: until each was seen once, one of them may be rolling."""
        there = set(keys)
        for key in {*self._rolling, *self._row} - there:
            self.forget(key)
        self._unseen = there if not self._unseen else self._unseen & there

    def forget(self, key: ObjectKey) -> None:
        """The AtomDeployment is gone."""
        self._row.pop(key, None)
        self._unseen.discard(key)
        self._rolling.discard(key)
        self._tell()

    def see(self, key: ObjectKey, observed: Observed) -> None:
        """Note what has become of an AtomDeployment."""
        before = len(self._rolling), len(self._unseen)
        self._unseen.discard(key)
        self._rolling.discard(key)
        if is_rolling(observed):
            self._rolling.add(key)
        if (len(self._rolling), len(self._unseen)) != before:
            self._tell()

    def leave(self, key: ObjectKey) -> None:
        """It has no rollout to begin."""
        if key in self._row:
            del self._row[key]
            self._tell()

    def take(self, key: ObjectKey) -> str | None:
        """Take the turn if it is this one's and return None; otherwise say why it waits."""
        if not self._most:
            return None
        self._row.setdefault(key)
        row, free = list(self._row), self._most - len(self._rolling - {key})
        if not self._unseen and row.index(key) < free:
            del self._row[key]
            self._rolling.add(key)
            return None
        return (
            f"the operator lets {self._most} roll at a time: this one is number"
            f" {row.index(key) + 1} of {len(row)} that wait"
        )

    def _tell(self) -> None:
        if self._most and not self._unseen:
            for waiting in list(self._row)[: max(0, self._most - len(self._rolling))]:
                self._announce(waiting)


def is_rolling(observed: Observed) -> bool:
    """Return whether pods that have served are being replaced by others, which were never all
    ready."""
    running, recorded = observed.deployment, observed.last_ready
    if running is None or recorded is None or not running.desired or running.complete:
        return False
    return recorded.name != running.revision
