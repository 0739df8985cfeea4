"""ProfileUsers: which AtomDeployments take which AtomProfile, so that an event wakes these alone.

Noted by each pass, and so known of all of them soon after a term has begun; one that no pass has
looked at yet is about to be. Knows no cluster.
"""

from __future__ import annotations

from atom_operator.domain import ObjectKey


class ProfileUsers:
    """Remembered for one term, by the name of the profile, whether it exists or not."""

    def __init__(self) -> None:
        self._named: dict[ObjectKey, str] = {}
        self._users: dict[str, dict[ObjectKey, None]] = {}
        self._of_namespace: dict[str, dict[ObjectKey, None]] = {}

    def forget_all(self) -> None:
        """A new term."""
        for known in (self._named, self._users, self._of_namespace):
            known.clear()

    def note(self, key: ObjectKey, name: str) -> None:
        """A pass begins to look at an AtomDeployment that takes this profile."""
        if self._named.get(key) == name:
            return
        self.forget(key)
        self._named[key] = name
        self._users.setdefault(name, {})[key] = None
        self._of_namespace.setdefault(key.namespace, {})[key] = None

    def forget(self, key: ObjectKey) -> None:
        """The AtomDeployment is gone."""
        name = self._named.pop(key, None)
        if name is None:
            return
        for known, place in ((self._users, name), (self._of_namespace, key.namespace)):
            del known[place][key]
            if not known[place]:
                del known[place]

    def of_profile(self, name: str) -> tuple[ObjectKey, ...]:
        """Name the AtomDeployments that take it."""
        return tuple(self._users.get(name, ()))

    def of_namespace(self, namespace: str) -> tuple[ObjectKey, ...]:
        """Name the AtomDeployments whose namespace may name another profile now."""
        return tuple(self._of_namespace.get(namespace, ()))
