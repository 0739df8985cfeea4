"""A Lease as data, and the rule of who may take it. Pure.

Safe against clocks that disagree, in the way of client-go's leader election: the times in a Lease
are never compared with our clock. A candidate notes, on its own monotonic clock, when it last saw
the Lease change; unchanged for the holder's whole duration means that the holder is gone. Called by
the elector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

# A released Lease names no holder; its duration no longer matters (the API wants at least 1).
_RELEASED_SECONDS = 1


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The spec of a coordination.k8s.io/v1 Lease; `version` is its resourceVersion, empty when
    new."""

    holder: str  # empty: released
    duration_seconds: int
    acquired: datetime | None
    renewed: datetime | None
    transitions: int
    version: str = ""
    reconciles: bool = False  # whether its holder was let through by other releases


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Describe how long a holder is believed, tries to renew, and waits between tries.

    `renew_seconds` < `duration_seconds`: a holder that cannot renew stops before another may start.
    A killed holder is replaced within `duration_seconds` + 2 x `retry_seconds`.
    """

    duration_seconds: int = 12
    renew_seconds: float = 8.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A Lease, and when (monotonic seconds) this process first saw it like that."""

    record: LeaseRecord
    since: float

    def expires(self) -> float:
        """Return when the holder may be taken for gone, unless the Lease changes."""
        return self.since + self.record.duration_seconds


def look(before: Sighting | None, record: LeaseRecord, monotonic: float) -> Sighting:
    """Return the sighting after reading `record`; only a change of the record restarts its time."""
    if before is not None and before.record == record:
        return before
    return Sighting(record, monotonic)


def may_take(sighting: Sighting, identity: str, monotonic: float) -> bool:
    """Return whether `identity` may write itself into the Lease: as its holder, or if it has
    none."""
    holder = sighting.record.holder
    return holder in ("", identity) or monotonic >= sighting.expires()


def first(identity: str, times: LeaseTimes, now: datetime) -> LeaseRecord:
    """Return the first Lease to create."""
    return LeaseRecord(identity, times.duration_seconds, now, now, transitions=0)


def taken(record: LeaseRecord, identity: str, times: LeaseTimes, now: datetime) -> LeaseRecord:
    """Renew `record` for its holder, or take it for another; `now` is for people to read."""
    ours = record.holder == identity
    return replace(
        record,
        holder=identity,
        duration_seconds=times.duration_seconds,
        acquired=record.acquired if ours else now,
        renewed=now,
        transitions=record.transitions if ours else record.transitions + 1,
    )


def released(record: LeaseRecord, now: datetime) -> LeaseRecord:
    """Take the holder out of `record`, so that the next one need not wait."""
    return replace(record, holder="", duration_seconds=_RELEASED_SECONDS, renewed=now)
