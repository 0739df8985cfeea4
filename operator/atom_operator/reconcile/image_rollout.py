"""Tells whose turn it is to take the operator's new default image: so many at a time, and no more
after it has failed once.

A default belongs to every AtomDeployment that names no image, so changing it would replace the pods
of all of them together. Remembered for one term and told by what is observed, so nothing is lost
with it. Asked by the reconciler; knows no cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from atom_operator.domain import DeploymentState, ObjectKey


class StagedImageRollout:
    """Rolls a new default image out to `most` AtomDeployments at a time, 0 for none; `announce` is
    told whom to reconcile when one ends."""

    def __init__(
        self, most: int = 1, announce: Callable[[ObjectKey], None] = lambda _key: None
    ) -> None:
        self._most = most
        self._announce = announce
        self._unseen: set[ObjectKey] = set()
        self._rolling: set[ObjectKey] = set()
        self._failed: dict[ObjectKey, str] = {}
        self._waiting: dict[ObjectKey, None] = {}  # in the order of asking

    def forget_all(self) -> None:
        """A new term."""
        for known in (self._unseen, self._rolling, self._failed, self._waiting):
            known.clear()

    def expect(self, keys: Iterable[ObjectKey]) -> None:
        """Every AtomDeployment there is: until each was seen once, one of them may be rolling."""
        there = set(keys)
        for key in {*self._rolling, *self._failed, *self._waiting} - there:
            self.forget(key)
        self._unseen = there if not self._unseen else self._unseen & there

    def forget(self, key: ObjectKey) -> None:
        """The AtomDeployment is gone."""
        self._waiting.pop(key, None)
        self._update(key, None)

    def see(self, key: ObjectKey, running: DeploymentState | None) -> None:
        """Note what has become of an AtomDeployment."""
        self._waiting.pop(key, None)
        self._update(key, running)

    def take(self, key: ObjectKey, image: str) -> str | None:
        """Take the turn if it is this one's and return None; otherwise say why it waits."""
        if not self._most:
            return "the next change of the spec takes it"
        for other, failed in self._failed.items():
            if failed == image:
                return f"it could not become ready in {other.namespace}/{other.name}"
        if self._unseen or len(self._rolling - {key}) >= self._most:
            self._waiting[key] = None
            return "waits until others have taken it"
        self._rolling.add(key)
        return None

    def _update(self, key: ObjectKey, running: DeploymentState | None) -> None:
        free = self._free
        self._unseen.discard(key)
        self._rolling.discard(key)
        self._failed.pop(key, None)
        if running is not None and running.image_before is not None:
            if running.rollback is not None:
                self._failed[key] = running.default_image or ""
            elif not running.complete:
                self._rolling.add(key)
        if self._free > free:
            for waiting in list(self._waiting)[: self._free]:
                self._announce(waiting)

    @property
    def _free(self) -> int:
        return 0 if self._unseen else max(0, self._most - len(self._rolling))
