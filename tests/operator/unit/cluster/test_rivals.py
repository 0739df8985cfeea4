"""Of two releases that watch the same objects the second waits, and says for whom."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.leadership.leader_election import Elector
from atom_operator.leadership.lease import LeaseTimes
from atom_operator.leadership.lease_object import ApiLease, lease_record
from atom_operator.leadership.rivals import Rival, Rivals
from tests.operator.unit.cluster.test_leadership import Connection, StoredLease
from tests.support.virtual_time import run_virtually

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SETTLED = 60.0  # seconds after which nothing changes by itself


@dataclass
class Cluster:
    """The Leases of every release, by name."""

    leases: dict[str, StoredLease] = field(default_factory=dict)
    reconciling: list[str] = field(default_factory=list)
    most_at_once: int = 0

    def of(self, name: str) -> StoredLease:
        return self.leases.setdefault(name, StoredLease())

    def all_but(self, name: str) -> list[Rival]:
        found = {other: stored.record for other, stored in self.leases.items() if other != name}
        return [Rival(other, record) for other, record in found.items() if record is not None]


class Release:
    """One replica of a release, wired as the runtime is."""

    def __init__(self, cluster: Cluster, name: str, replica: str = "0") -> None:
        loop = asyncio.get_running_loop()
        self.cluster, self.name = cluster, name
        self.elector = Elector(
            Connection(cluster.of(name)),
            f"{name}-{replica}",
            LeaseTimes(),
            monotonic=loop.time,
            clock=lambda: START + timedelta(seconds=loop.time()),
        )
        self.rivals = Rivals(self._read, loop.time)
        self.task = asyncio.create_task(self.elector.run(self._lead))

    async def _read(self) -> Sequence[Rival]:
        await asyncio.sleep(0.01)
        return self.cluster.all_but(self.name)

    def _mine(self) -> Rival:
        record = self.elector.record
        assert record is not None
        return Rival(self.name, record)

    async def _lead(self) -> None:
        await self.rivals.wait(self._mine, self.elector.tell)
        self.cluster.reconciling.append(self.elector.identity)
        self.cluster.most_at_once = max(self.cluster.most_at_once, len(self.cluster.reconciling))
        try:
            await asyncio.Event().wait()
        finally:
            self.cluster.reconciling.remove(self.elector.identity)

    async def end(self) -> None:
        """Uninstalled: the Lease is released."""
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.mark.parametrize("names", [("whole", "some"), ("some", "whole")])
def test_the_second_release_waits_for_the_first_and_says_so(
    names: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        cluster = Cluster()
        first = Release(cluster, names[0])
        await asyncio.sleep(SETTLED)
        second = Release(cluster, names[1])
        await asyncio.sleep(SETTLED)
        assert cluster.reconciling == [f"{names[0]}-0"]
        await first.end()
        await asyncio.sleep(SETTLED)
        assert cluster.reconciling == [f"{names[1]}-0"]
        assert cluster.most_at_once == 1
        await second.end()

    run_virtually(main())
    (refusal,) = [item.getMessage() for item in caplog.records if item.levelno == logging.ERROR]
    assert f"the release of Lease {names[0]} watches namespaces" in refusal


def test_releases_that_come_at_once_do_not_wait_for_each_other_for_ever() -> None:
    async def main() -> None:
        cluster = Cluster()
        both = [Release(cluster, name) for name in ("whole", "some")]
        await asyncio.sleep(SETTLED)
        assert len(cluster.reconciling) == 1
        assert cluster.most_at_once == 1
        for one in both:
            await one.end()

    run_virtually(main())


def test_another_replica_of_the_first_goes_on_before_the_second_release() -> None:
    async def main() -> None:
        cluster = Cluster()
        first = Release(cluster, "whole")
        await asyncio.sleep(SETTLED)
        second, reserve = Release(cluster, "some"), Release(cluster, "whole", "1")
        await asyncio.sleep(SETTLED)
        await first.end()
        await asyncio.sleep(SETTLED)
        assert cluster.reconciling == ["whole-1"]
        assert cluster.most_at_once == 1
        for one in (second, reserve):
            await one.end()

    run_virtually(main())


def test_a_release_that_was_killed_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        cluster = Cluster()
        first = Release(cluster, "whole")
        await asyncio.sleep(SETTLED)
        first.elector._port.cut = True  # type: ignore[attr-defined]  # its process is gone
        second = Release(cluster, "some")
        await asyncio.sleep(SETTLED)
        assert cluster.reconciling == ["some-0"]
        for one in (first, second):
            await one.end()

    run_virtually(main())


@pytest.mark.parametrize("seed", range(12))
def test_two_never_reconcile_at_once_whatever_comes_and_goes(seed: int) -> None:
    async def main() -> None:
        chance, cluster = random.Random(seed), Cluster()
        running: list[Release] = []
        for number in range(20):
            if running and chance.random() < 0.5:
                one = running.pop(chance.randrange(len(running)))
                if chance.random() < 0.5:
                    one.elector._port.cut = True  # type: ignore[attr-defined]  # killed
                await one.end()
            else:
                running.append(Release(cluster, chance.choice(["whole", "some"]), str(number)))
            await asyncio.sleep(chance.choice([0.1, 3.0, 14.0, 40.0]))
            assert cluster.most_at_once <= 1
        running.append(Release(cluster, "whole", "last"))
        await asyncio.sleep(2 * SETTLED)
        assert len(cluster.reconciling) == 1, "and one of them does in the end"
        assert cluster.most_at_once == 1
        for one in running:
            await one.end()

    run_virtually(main())


def test_what_cannot_be_read_is_told_and_waited_for_or_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        answers: list[Exception] = [TransientError("no answer"), RefusedError("forbidden", 403)]

        async def read() -> Sequence[Rival]:
            raise answers.pop(0)

        mine = Rival("whole", lease_record({"metadata": {}}))
        rivals = Rivals(read, asyncio.get_running_loop().time)
        await rivals.wait(lambda: mine, lambda _reconciles: None)
        assert answers == []

    with caplog.at_level(logging.WARNING):
        run_virtually(main())
    assert "no answer" in caplog.text
    assert "so none counts: forbidden" in caplog.text


def test_a_lease_carries_whom_it_watches_and_whether_it_reconciles() -> None:
    port = ApiLease(None, "ns", "release", {"serving.atom.dev/watches": "namespaces"})  # type: ignore[arg-type]
    record = replace(lease_record({"metadata": {}}), holder="a", version="7")
    quiet = port._manifest(record)
    assert quiet["metadata"]["labels"] == {"serving.atom.dev/watches": "namespaces"}
    assert lease_record(quiet).reconciles is False
    assert lease_record(port._manifest(replace(record, reconciles=True))).reconciles is True
