"""One replica leads at a time: elections on an in-memory Lease, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.leadership.leader_election import Elector
from atom_operator.leadership.lease import LeaseRecord, LeaseTimes
from atom_operator.leadership.lease_object import lease_record
from tests.support.virtual_time import run_virtually

TIMES = LeaseTimes()
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class StoredLease:
    """The API server's one Lease, with optimistic concurrency."""

    record: LeaseRecord | None = None
    versions: int = 0

    def store(self, record: LeaseRecord) -> LeaseRecord:
        self.versions += 1
        self.record = replace(record, version=str(self.versions))
        return self.record


@dataclass
class Connection:
    """One replica's way to the Lease: it can be cut, or hang."""

    stored: StoredLease
    cut: bool = False
    hangs: bool = False

    async def read(self) -> LeaseRecord | None:
        await self._pass()
        return self.stored.record

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        await self._pass()
        if self.stored.record is not None:
            raise TransientError("409: exists")
        return self.stored.store(record)

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        await self._pass()
        if self.stored.record is None or self.stored.record.version != record.version:
            raise TransientError("409: written by another")
        return self.stored.store(record)

    async def _pass(self) -> None:
        if self.cut:
            raise TransientError("no connection")
        if self.hangs:
            await asyncio.sleep(86_400)
        await asyncio.sleep(0.01)
        if self.cut:
            raise TransientError("no connection")


@dataclass
class Replica:
    """An elector that notes from when to when it led."""

    name: str
    stored: StoredLease
    clock_error: timedelta = timedelta()
    terms: list[tuple[float, float | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.connection = Connection(self.stored)
        self.elector = Elector(
            self.connection,
            self.name,
            TIMES,
            monotonic=loop.time,
            clock=lambda: START + self.clock_error + timedelta(seconds=loop.time()),
        )
        self.task = asyncio.create_task(self.elector.run(self.lead))

    async def lead(self) -> None:
        loop = asyncio.get_running_loop()
        self.terms.append((loop.time(), None))
        try:
            await asyncio.Event().wait()
        finally:
            self.terms[-1] = (self.terms[-1][0], loop.time())

    @property
    def leads(self) -> bool:
        return bool(self.terms) and self.terms[-1][1] is None

    async def kill(self) -> float:
        """As by SIGKILL: it stops at once, and its Lease stays as it is."""
        self.connection.cut = True
        self.task.cancel()
        await asyncio.wait([self.task])
        return asyncio.get_running_loop().time()

    async def end(self) -> float:
        """As by SIGTERM."""
        self.task.cancel()
        await asyncio.wait([self.task])
        return asyncio.get_running_loop().time()


def never_two_at_once(*replicas: Replica) -> bool:
    terms = sorted((start, end or float("inf")) for item in replicas for start, end in item.terms)
    return all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(terms))


async def two(clock_error: timedelta = timedelta()) -> tuple[Replica, Replica]:
    """A leader, and one that waits."""
    stored = StoredLease()
    first = Replica("first", stored)
    await asyncio.sleep(1)
    second = Replica("second", stored, clock_error)
    await asyncio.sleep(60)
    assert first.leads
    assert not second.terms
    return first, second


@pytest.mark.parametrize("hours", [-30, 0, 30])
def test_a_holder_keeps_its_lease_whatever_the_others_clock_says(hours: int) -> None:
    async def main() -> None:
        first, second = await two(timedelta(hours=hours))
        await asyncio.sleep(3600)
        assert first.leads
        assert not second.terms

    run_virtually(main())


@pytest.mark.parametrize("offset", [0.0, 0.5, 1.0, 1.5, 1.9])
@pytest.mark.parametrize("hours", [-30, 30])
def test_a_killed_holder_is_replaced_within_20_seconds(hours: int, offset: float) -> None:
    async def main() -> None:
        first, second = await two(timedelta(hours=hours))
        await asyncio.sleep(offset)
        killed = await first.kill()
        await asyncio.sleep(60)
        assert second.leads
        assert TIMES.duration_seconds - TIMES.retry_seconds <= second.terms[0][0] - killed < 20
        assert never_two_at_once(first, second)

    run_virtually(main())


def test_a_graceful_end_hands_the_lease_over_at_the_next_try() -> None:
    async def main() -> None:
        first, second = await two()
        ended = await first.end()
        await asyncio.sleep(60)
        assert second.leads
        assert second.terms[0][0] - ended <= TIMES.retry_seconds + 0.1
        assert never_two_at_once(first, second)

    run_virtually(main())


@pytest.mark.parametrize("fault", ["cut", "hangs"])
def test_a_holder_without_the_api_server_stops_before_another_starts(fault: str) -> None:
    async def main() -> None:
        first, second = await two()
        setattr(first.connection, fault, True)
        await asyncio.sleep(60)
        assert second.leads
        stopped = first.terms[0][1]
        assert stopped is not None
        # What was under way when it stopped has this long to reach the server.
        margin = TIMES.duration_seconds - TIMES.renew_seconds - TIMES.retry_seconds
        assert second.terms[0][0] - stopped >= margin
        setattr(first.connection, fault, False)
        await asyncio.sleep(120)
        assert second.leads
        assert len(first.terms) == 1

    run_virtually(main())


def test_after_an_outage_of_the_api_server_one_replica_leads_again() -> None:
    async def main() -> None:
        first, second = await two()
        first.connection.cut = second.connection.cut = True
        await asyncio.sleep(120)
        assert not first.leads
        assert not second.leads
        first.connection.cut = second.connection.cut = False
        await asyncio.sleep(30)
        assert first.leads != second.leads
        assert never_two_at_once(first, second)

    run_virtually(main())


def test_candidates_that_start_together_make_one_lease_and_one_leader() -> None:
    async def main() -> None:
        stored = StoredLease()
        replicas = [Replica(f"replica-{number}", stored) for number in range(3)]
        await asyncio.sleep(60)
        assert [item.leads for item in replicas].count(True) == 1
        assert never_two_at_once(*replicas)

    run_virtually(main())


def test_a_frozen_process_may_not_write_when_it_wakes() -> None:
    async def main() -> None:
        now = 100.0
        elector = Elector(
            Connection(StoredLease()), "me", TIMES, monotonic=lambda: now, clock=lambda: START
        )
        assert not elector.may_write()
        task = asyncio.create_task(elector.run(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert elector.may_write()
        now += TIMES.renew_seconds  # and no line of ours ran meanwhile
        assert not elector.may_write()
        task.cancel()
        await asyncio.wait([task])

    run_virtually(main())


def test_a_leader_that_fails_releases_the_lease_and_says_why() -> None:
    async def fail() -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        stored = StoredLease()
        loop = asyncio.get_running_loop()
        elector = Elector(Connection(stored), "me", TIMES, monotonic=loop.time, clock=lambda: START)
        with pytest.raises(RuntimeError, match="a bug"):
            await elector.run(fail)
        assert stored.record is not None
        assert stored.record.holder == ""

    run_virtually(main())


def test_a_new_holder_counts_a_transition_and_a_renewal_does_not() -> None:
    async def main() -> None:
        first, _ = await two()
        before = first.stored.record
        assert before is not None
        assert before.transitions == 0
        await first.kill()
        await asyncio.sleep(60)
        after = first.stored.record
        assert after is not None
        assert (after.holder, after.transitions) == ("second", 1)
        assert after.acquired is not None
        assert after.renewed is not None
        assert after.renewed > after.acquired

    run_virtually(main())


def test_a_lease_without_a_spec_belongs_to_nobody() -> None:
    record = lease_record({"metadata": {"resourceVersion": "7"}, "spec": None})
    assert (record.holder, record.version) == ("", "7")
