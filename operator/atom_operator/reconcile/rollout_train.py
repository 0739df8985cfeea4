"""RolloutTrain: the order in which AtomDeployments begin rollouts, a bounded number at a time.

An AtomDeployment's own change waits for a place alone. A default of many (an AtomProfile, the
chart's defaults, a default image) also rolls out one after the other, after changes of their own,
and stops once it could not become ready in one. Remembered for one term; workloads record failed
and running rollouts, so a new term loses the order of the queue alone. Asked by the reconciler;
knows no cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from atom_operator.domain import DeploymentState, ObjectKey, Observed
from atom_operator.domain.origin import Default, subject
from atom_operator.reconcile.disaggregation.pair import pair_rolls

_REFRESHED = 16  # at the head of the queue, which are updated at once
_NAMED = 3  # of those that hold the places, in a message
_WITH_OWN = "the next change of its own spec takes it"


class RolloutTrain:
    """Let `most` AtomDeployments roll at a time, 0 for any number; `announce` is called with the
    one to reconcile when its turn has come. `follows_defaults`: whether a changed default begins
    rollouts by itself."""

    def __init__(
        self,
        most: int = 0,
        announce: Callable[[ObjectKey], None] = lambda _key: None,
        *,
        follows_defaults: bool = True,
    ) -> None:
        self._most = most
        self._announce = announce
        self._follows_defaults = follows_defaults
        self._unseen: set[ObjectKey] = set()
        self._rolling: dict[ObjectKey, None] = {}
        self._row: dict[ObjectKey, bool] = {}  # in the order of asking; True: for a default
        self._failed: dict[Default, dict[ObjectKey, None]] = {}  # and where
        self._stopped: dict[ObjectKey, None] = {}  # by a failed default

    def forget_all(self) -> None:
        """Forget everything at a new term."""
        for known in (self._unseen, self._rolling, self._row, self._failed, self._stopped):
            known.clear()

    def expect(self, keys: Iterable[ObjectKey]) -> None:
        """Expect every existing AtomDeployment: until each was seen once, one of them may be
        rolling."""
        there = set(keys)
        failed = (key for keys in self._failed.values() for key in keys)
        for key in {*self._rolling, *self._row, *self._stopped, *failed} - there:
            self.forget(key)
        self._unseen = there if not self._unseen else self._unseen & there

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        before = self._free
        self._unseen.discard(key)
        for known in (self._rolling, self._row, self._stopped):
            known.pop(key, None)
        for default in list(self._failed):
            self._acquit(default, key)
        self._tell(before)

    def pass_over(self, key: ObjectKey) -> None:
        """Skip an AtomDeployment that can be neither read nor written, so that others do not wait
        for it."""
        before = self._free
        self._unseen.discard(key)
        in_row = self._row.pop(key, None)
        self._rolling.pop(key, None)
        self._tell(before if in_row is None else -1)

    def see(self, key: ObjectKey, observed: Observed) -> None:
        """Update the train from the observation of an AtomDeployment."""
        before, is_first = self._free, key in self._unseen
        self._unseen.discard(key)
        self._stopped.pop(key, None)
        was_rolling = key in self._rolling
        self._rolling.pop(key, None)
        if holds_turn(observed, was_rolling=was_rolling, is_first=is_first):
            self._rolling[key] = None
        if observed.deployment is not None:
            self._judge(key, observed.deployment)
        self._tell(before)

    def leave(self, key: ObjectKey) -> None:
        """Remove an AtomDeployment that has no rollout to begin."""
        if self._row.pop(key, None) is not None:
            self._tell(-1)

    def take(
        self, key: ObjectKey, defaults: tuple[Default, ...] = (), *, urgent: bool = False
    ) -> str | None:
        """Take the turn if it is this one's and return None; otherwise return why it waits.

        `defaults`: the defaults that are the only change.
        """
        if defaults and (stopped := self._stops(key, defaults)) is not None:
            self._row.pop(key, None)
            return stopped
        if urgent or not self._most or key in self._rolling:
            self._row.pop(key, None)
            self._rolling[key] = None
            return None
        is_new = self._row.get(key) is not bool(defaults)
        if is_new:
            self._row.pop(key, None)
            self._row[key] = bool(defaults)
        row = self._ordered
        if not self._unseen and row.index(key) < self._free:
            del self._row[key]
            self._rolling[key] = None
            self._refresh(key)
            return None
        if is_new:
            self._refresh(key)
        return (
            f"{subject(defaults)}the operator lets {self._most} roll at a time: {self._place(key)}"
        )

    def _stops(self, key: ObjectKey, defaults: tuple[Default, ...]) -> str | None:
        """Return why a changed default is not rolled out by any AtomDeployment, or None."""
        if not self._follows_defaults:
            return f"{subject(defaults)}{_WITH_OWN}"
        for default in defaults:
            for other in self._failed.get(default, ()):
                self._stopped[key] = None
                failed = f"{subject((default,))}it could not become ready in {_name(other)}"
                return f"{failed}, so no other one takes it; another change of it begins anew"
        return None

    def _place(self, key: ObjectKey) -> str:
        """Describe the AtomDeployment's place in the queue, and the ones before it."""
        row = self._ordered
        index = row.index(key)
        ahead = [*sorted(self._rolling), *row[:index]] or sorted(self._unseen - {key})
        names = ", ".join(_name(other) for other in ahead[:_NAMED])
        more = f" and {len(ahead) - _NAMED} more" if len(ahead) > _NAMED else ""
        after = f", after {names}{more}" if names else ""
        return f"this one is number {index + 1} of {len(row)} that wait{after}"

    def _judge(self, key: ObjectKey, running: DeploymentState) -> None:
        """Record defaults that could not become ready here, and those that now have."""
        origin = running.notes.origin
        if origin is None:
            return
        if running.notes.rollback is not None or _is_stalled(running):
            for default in origin.follows:
                self._failed.setdefault(default, {})[key] = None
        elif running.complete:
            for default in list(self._failed):
                if default in origin.defaults or origin.is_new(default):
                    self._acquit(default, key)

    def _acquit(self, default: Default, key: ObjectKey) -> None:
        """Clear a default that did not fail here, as far as is known: others may follow it."""
        places = self._failed.get(default, {})
        if key not in places:
            return
        del places[key]
        if not places:
            del self._failed[default]
            for stopped in list(self._stopped):
                self._announce(stopped)

    @property
    def _ordered(self) -> list[ObjectKey]:
        """Return the queue: AtomDeployments' own changes before those of defaults."""
        return sorted(self._row, key=lambda key: self._row[key])

    @property
    def _free(self) -> int:
        return 0 if self._unseen else max(0, self._most - len(self._rolling))

    def _refresh(self, key: ObjectKey) -> None:
        """Announce the others whose place in the queue, or predecessor, changed because of
        `key`."""
        for waiting in self._ordered[:_REFRESHED]:
            if waiting != key:
                self._announce(waiting)

    def _tell(self, before: int) -> None:
        """Announce the ones whose turn has come, if there are more places than `before`."""
        if self._free > before:
            for waiting in self._ordered[: self._free]:
                self._announce(waiting)


def holds_turn(observed: Observed, *, was_rolling: bool, is_first: bool) -> bool:
    """Return whether pods that serve are being replaced here, so that others wait.

    A turn ends with the rollout, with its rollback, and when neither progresses: past its deadline,
    paused, without wanted pods. `is_first`: whether it took a turn is not known.
    """
    running, recorded = observed.deployment, observed.records.last_ready
    if running is not None and running.desired and pair_rolls(observed):
        return was_rolling or is_first
    if running is None or not running.desired or running.complete or running.progress.paused:
        return False
    if _is_stalled(running):
        return False
    if running.notes.rollback is not None or recorded is None:
        return was_rolling
    # If no pod served when it began, it takes no other's place.
    takes_turn = was_rolling or is_first or running.ready > 0
    return recorded.name != running.revision and takes_turn


def _is_stalled(running: DeploymentState) -> bool:
    return (
        running.progress.stalled_message is not None
        and running.progress.up_to_date
        and not running.complete
    )


def _name(key: ObjectKey) -> str:
    return f"{key.namespace}/{key.name}"
