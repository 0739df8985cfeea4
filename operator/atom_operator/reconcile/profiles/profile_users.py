"""ProfileUsers: which AtomDeployments take which AtomProfile, and which of them wait to.

An event of a profile wakes these alone, and the profile's status counts them. Noted by each pass,
and so known of all of them soon after a term has begun; one that no pass has looked at yet is about
to be. Knows no cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atom_operator.domain import ObjectKey


@dataclass(frozen=True, slots=True)
class Uses:
    """Count the AtomDeployments that take a profile. waiting: those whose pods do not follow its
    newest version yet, because other AtomDeployments come first or because it failed in one."""

    deployments: int = 0
    waiting: int = 0


class ProfileUsers:
    """Remembered for one term, by the name of the profile, whether it exists or not."""

    def __init__(self) -> None:
        self._named: dict[ObjectKey, str] = {}
        self._users: dict[str, dict[ObjectKey, None]] = {}
        self._of_namespace: dict[str, dict[ObjectKey, None]] = {}
        self._waiting: set[ObjectKey] = set()
        self._changed: dict[str, None] = {}  # profiles whose counts may be others now
        self._unseen: set[ObjectKey] | None = None  # None: not listed in this term

    def forget_all(self) -> None:
        """Forget everything at a new term."""
        for known in (self._named, self._users, self._of_namespace, self._waiting, self._changed):
            known.clear()
        self._unseen = None

    def expect(self, keys: Iterable[ObjectKey]) -> None:
        """Learn of every AtomDeployment there is: counts are complete once each was noted."""
        there = set(keys)
        self._unseen = there - self._named.keys()

    @property
    def are_complete(self) -> bool:
        """Return whether every AtomDeployment was looked at in this term."""
        return self._unseen is not None and not self._unseen

    def note(self, key: ObjectKey, name: str) -> None:
        """Record that a pass begins to look at an AtomDeployment that takes this profile."""
        self._see(key)
        if self._named.get(key) == name:
            return
        self.forget(key)
        self._named[key] = name
        self._users.setdefault(name, {})[key] = None
        self._of_namespace.setdefault(key.namespace, {})[key] = None
        self._changed[name] = None

    def note_waiting(self, key: ObjectKey, *, waits: bool) -> None:
        """A pass has decided whether the AtomDeployment waits to follow its profile."""
        if key not in self._named or waits is (key in self._waiting):
            return
        (self._waiting.add if waits else self._waiting.discard)(key)
        self._changed[self._named[key]] = None

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._see(key)
        self._waiting.discard(key)
        name = self._named.pop(key, None)
        if name is None:
            return
        self._changed[name] = None
        for known, place in ((self._users, name), (self._of_namespace, key.namespace)):
            del known[place][key]
            if not known[place]:
                del known[place]

    def hear(self, name: str) -> None:
        """A profile has changed or is new: it may lack its counts."""
        self._changed[name] = None

    def of_profile(self, name: str) -> tuple[ObjectKey, ...]:
        """Name the AtomDeployments that take it."""
        return tuple(self._users.get(name, ()))

    def of_namespace(self, namespace: str) -> tuple[ObjectKey, ...]:
        """Name the AtomDeployments whose namespace may name another profile now."""
        return tuple(self._of_namespace.get(namespace, ()))

    def uses_of(self, name: str) -> Uses:
        """Count the AtomDeployments that take it."""
        users = self._users.get(name, {})
        return Uses(len(users), sum(key in self._waiting for key in users))

    def take_changed(self) -> tuple[str, ...]:
        """Return the names of profiles whose counts may have changed since the last call."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def _see(self, key: ObjectKey) -> None:
        if self._unseen is not None:
            self._unseen.discard(key)
