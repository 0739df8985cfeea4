"""Ends the wait of half-placed groups for each other: remembers them, and whose turn it is to give
its pods back.

Groups of several AtomDeployments may hold each other's nodes, so the memory is shared by all; it is
lost with the process, and each pass of an AtomDeployment brings its own groups back. A group that
has given back is created anew and may take a place again: each time it waits twice as long before
it gives back once more. Called by the reconciler, which evicts.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.domain import ObjectKey, Observed, RevisionInForce
from atom_operator.plan.devices.claimed_devices import supply_of
from atom_operator.plan.half_placed import HalfPlacedGroup, giving_back, half_placed
from atom_operator.plan.inventory import pods_asked
from atom_operator.plan.room import takes_one

# A node that is about to be free, or a group that is about to end, comes within this time.
_LASTS = timedelta(seconds=120)
_LONGEST = timedelta(hours=1)
_BETWEEN = timedelta(seconds=30)  # the place of one that gave back is taken by then


class GroupPlaces:
    """Remembers the half-placed groups of all AtomDeployments."""

    def __init__(self) -> None:
        self._groups: dict[ObjectKey, tuple[HalfPlacedGroup, ...]] = {}
        # How often an AtomDeployment has given back since so many of its groups were ready.
        self._given: dict[ObjectKey, tuple[int, int]] = {}
        self._last: datetime | None = None

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._groups.pop(key, None)
        self._given.pop(key, None)

    def forget_all(self) -> None:
        """Forget everything at a new term."""
        self._groups.clear()
        self._given.clear()
        self._last = None

    async def look(
        self, fleet: FleetReader, run: RevisionInForce, observed: Observed
    ) -> HalfPlacedGroup | None:
        """Return the group of this AtomDeployment that gives its pods back now, if any."""
        key, now = run.plan.identity.key, observed.at
        last = self._turn(key, observed, now) if now is not None else None
        if last is None or not await _leaves_a_place(fleet, run, last):
            return None
        times, ready = self._given[key]
        self._given[key], self._last = (times + 1, ready), now
        return last

    def _turn(self, key: ObjectKey, observed: Observed, now: datetime) -> HalfPlacedGroup | None:
        """Remember the groups of an AtomDeployment, and return one of them whose turn it is."""
        self._groups.pop(key, None)
        own = half_placed(key, observed)
        ready = observed.deployment.ready if observed.deployment is not None else 0
        if own:
            self._groups[key] = own
        if not own or self._given.get(key, (0, -1))[1] < ready:
            self._given[key] = (0, ready)
        if not own or (self._last is not None and now - self._last < _BETWEEN):
            return None
        every = (group for groups in self._groups.values() for group in groups)
        last = giving_back(group for group in every if now - group.since >= _LASTS)
        if last is None or last.key != key or now - last.since < self._patience(key):
            return None
        return last

    def _patience(self, key: ObjectKey) -> timedelta:
        doublings = max(0, self._given[key][0] - 3)  # as many groups may give back in a row
        return min(_LONGEST, _LASTS * (1 << min(doublings, 8)))


async def _leaves_a_place(fleet: FleetReader, run: RevisionInForce, group: HalfPlacedGroup) -> bool:
    """Return whether a node takes a pod of such groups once this one has gone: a node with a cordon
    takes none. True also if that cannot be counted."""
    nodes, placed = await fleet.nodes(Age.NOW), await fleet.pods(Age.NOW)
    if nodes is None or placed is None:
        return True
    names, picture = frozenset(group.names), None
    if run.plan.accelerator.claim is not None and (known := await fleet.devices(Age.NOW)):
        picture = known.without(group.key.namespace, names)
    gone = placed.without(group.key, names)
    supply = supply_of(run.plan, nodes, gone, picture, pods_asked(run.plan, run.pods.template))
    return supply is None or any(takes_one(node, supply) for node in supply.nodes)
