"""An informer follows the cluster, says when it may be believed, and finds what was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atom_operator.cluster.errors import TransientError
from atom_operator.cluster.informer import Informer, Informers, Scope, scopes_of
from atom_operator.constants import LABEL_DEPLOYMENT, LABEL_JOB_FOR
from atom_operator.domain import CONFIG_MAP, JOB, POD, SERVICE
from atom_operator.kinds import LEADER_WORKER_SET, Kind
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.operator.fake_watch import FakeWatch
from tests.support.virtual_time import run_virtually

PERIOD = 300.0
CHAT = {LABEL_DEPLOYMENT: "chat"}


def config_map(name: str, owner: str = "chat", **data: str) -> dict[str, Any]:
    labels = {LABEL_DEPLOYMENT: owner}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class World:
    """A cluster, its watch, and one informer of a kind with all that it announced."""

    def __init__(
        self, kind: Kind = CONFIG_MAP, label: str = LABEL_DEPLOYMENT, *, wakes: bool = True
    ) -> None:
        self.cluster = FakeCluster()
        self.watch = FakeWatch(self.cluster)
        self.announced: list[str] = []
        scope = Scope(kind, None, label, wakes)
        self.informer = Informer(self.watch, scope, self._announce, PERIOD)

    def _announce(self, namespace: str, name: str) -> None:
        self.announced.append(f"{namespace}/{name}")

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.informer.run())
        await self.informer.wait_tried()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def tell(self) -> None:
        self.watch.announce()
        await asyncio.sleep(0.01)

    def seen(self) -> dict[str, Any]:
        found = self.informer.cache.select("default", CHAT)
        return {item["metadata"]["name"]: item["data"] for item in found}


def test_what_is_there_at_the_start_is_known_and_announced() -> None:
    async def main() -> None:
        world = World()
        world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
        async with world.following():
            assert world.informer.is_current
            assert world.seen() == {"plan": {"a": "1"}}
            assert world.announced == ["default/chat"]

    run_virtually(main())


def test_changes_and_deletions_are_followed_and_announced() -> None:
    async def main() -> None:
        world = World()
        world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
        async with world.following():
            world.announced.clear()
            world.cluster.create(CONFIG_MAP, config_map("plan", a="2"))
            world.cluster.create(CONFIG_MAP, config_map("more", "other"))
            await world.tell()
            assert world.seen() == {"plan": {"a": "2"}}
            del world.cluster.objects[CONFIG_MAP, "default", "plan"]
            await world.tell()
            assert world.seen() == {}
            assert world.announced == ["default/chat", "default/other", "default/chat"]

    run_virtually(main())


def test_what_wakes_nothing_is_known_all_the_same() -> None:
    async def main() -> None:
        world = World(wakes=False)
        world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
        async with world.following():
            assert world.seen() == {"plan": {"a": "1"}}
            world.cluster.create(CONFIG_MAP, config_map("plan", a="2"))
            await world.tell()
            assert world.seen() == {"plan": {"a": "2"}}
            assert world.announced == []

    run_virtually(main())


def test_a_job_wakes_the_one_that_it_works_for() -> None:
    async def main() -> None:
        world = World(JOB, LABEL_JOB_FOR)
        labels = {LABEL_JOB_FOR: "chat"}
        metadata = {"name": "weights-1", "namespace": "default", "labels": labels}
        world.cluster.create(JOB, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata})
        async with world.following():
            assert world.announced == ["default/chat"]

    run_virtually(main())


def test_what_we_wrote_ourselves_is_known_at_once_and_announced_to_nobody() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            answer = world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
            world.informer.keep(answer)
            assert world.seen() == {"plan": {"a": "1"}}
            await world.tell()
            assert world.announced == []
            world.cluster.create(CONFIG_MAP, config_map("plan", a="not ours"))
            await world.tell()
            assert world.announced == ["default/chat"]

    run_virtually(main())


def test_a_watch_that_is_faster_than_the_answer_to_our_write_tells_nobody() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            with world.informer.writing("default", "plan"):
                answer = world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
                await world.tell()
                world.informer.keep(answer)
            with world.informer.writing("default", "plan"):
                await world.cluster.delete(CONFIG_MAP, "default", "plan")
                world.informer.drop("default", "plan")
            assert world.seen() == {}
            await world.tell()
            assert world.seen() == {}
            assert world.announced == []

    run_virtually(main())


def test_what_another_does_while_we_write_is_announced() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            with world.informer.writing("default", "plan"):
                answer = world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
                await world.tell()
                world.cluster.create(CONFIG_MAP, config_map("plan", b="2"))
                await world.tell()
                world.informer.keep(answer)
                assert world.announced == []
            assert world.announced == ["default/chat"]
            assert world.seen() == {"plan": {"b": "2"}}

    run_virtually(main())


async def _write_without_answer(world: World) -> None:
    with world.informer.writing("default", "plan"):
        world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
        await world.tell()
        raise TransientError("no answer came")


def test_what_a_watch_shows_beside_a_write_that_fails_is_announced() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            with pytest.raises(TransientError):
                await _write_without_answer(world)
            assert world.announced == ["default/chat"]

    run_virtually(main())


def test_while_the_watch_is_closed_the_cache_is_not_to_be_believed() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            world.watch.refuses = TransientError("busy")
            world.watch.break_watches()
            await asyncio.sleep(0.1)
            assert not world.informer.is_current
            world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
            world.watch.announce()
            world.watch.refuses = None
            await asyncio.sleep(60)
            assert world.informer.is_current
            assert world.seen() == {"plan": {"a": "1"}}

    run_virtually(main())


def test_a_broken_connection_goes_on_where_it_was_without_listing() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            for _ in range(5):
                world.watch.break_watches()
                await asyncio.sleep(40)
            assert world.informer.is_current
            assert (len(world.watch.lists), len(world.watch.opened)) == (1, 6)

    run_virtually(main())


def test_between_two_watches_the_cache_is_believed_when_the_first_ended_as_asked() -> None:
    async def main() -> None:
        world = World()
        async with world.following():
            for _ in range(3):
                opened = len(world.watch.opened)
                await asyncio.sleep(7)
                world.watch.end_watches()
                for _ in range(20):
                    assert world.informer.is_current
                    await asyncio.sleep(0.01)
                assert len(world.watch.opened) == opened + 1
            world.watch.end_watches()  # at once: somebody does not want to be watched
            await asyncio.sleep(0.01)
            assert not world.informer.is_current
            await asyncio.sleep(10)
            assert world.informer.is_current

    run_virtually(main())


def test_a_version_that_is_too_old_leads_to_a_new_list() -> None:
    async def main() -> None:
        world = World()
        world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
        async with world.following():
            world.announced.clear()
            del world.cluster.objects[CONFIG_MAP, "default", "plan"]
            world.watch.expire()
            await asyncio.sleep(10)
            assert world.informer.is_current
            assert world.seen() == {}
            assert world.announced == ["default/chat"]
            assert len(world.watch.lists) == 2

    run_virtually(main())


def test_what_a_watch_has_lost_is_found_within_a_period_and_listed_once_in_it() -> None:
    async def main() -> None:
        world = World()
        for name in ("plan", "gone"):
            world.cluster.create(CONFIG_MAP, config_map(name, a="1"))
        async with world.following():
            world.announced.clear()
            world.cluster.create(CONFIG_MAP, config_map("plan", a="2"))
            del world.cluster.objects[CONFIG_MAP, "default", "gone"]
            world.watch.lose()
            await asyncio.sleep(PERIOD / 2)
            assert world.seen() == {"plan": {"a": "1"}, "gone": {"a": "1"}}
            await asyncio.sleep(PERIOD / 2 + 1)
            assert world.seen() == {"plan": {"a": "2"}}
            assert world.announced == ["default/chat", "default/chat"]
            await asyncio.sleep(3 * PERIOD)
            assert len(world.watch.lists) == 5

    run_virtually(main())


def group(owner: str = "chat") -> dict[str, Any]:
    metadata = {"name": owner, "namespace": "default", "labels": {LABEL_DEPLOYMENT: owner}}
    return {"metadata": metadata, "spec": {"replicas": 1}}


def test_a_kind_without_its_crd_is_asked_for_once_a_period_and_watched_when_it_is_there() -> None:
    async def main() -> None:
        world = World(LEADER_WORKER_SET)
        world.cluster.unserved_kinds.add(LEADER_WORKER_SET)
        async with world.following():
            assert not world.informer.is_current
            await asyncio.sleep(2.5 * PERIOD)
            assert (len(world.watch.lists), len(world.watch.opened)) == (3, 0)
            world.cluster.unserved_kinds.clear()
            world.cluster.create(LEADER_WORKER_SET, group())
            await asyncio.sleep(PERIOD)
            assert world.informer.is_current
            assert world.announced == ["default/chat"]

    run_virtually(main())


def test_nobody_asks_for_objects_of_a_kind_that_is_known_not_to_be_served() -> None:
    async def main() -> None:
        world = World(LEADER_WORKER_SET)
        world.cluster.unserved_kinds.add(LEADER_WORKER_SET)
        async with world.following():
            assert world.informer.is_unserved
            world.cluster.unserved_kinds.clear()
            world.informer.notice_served()
            await asyncio.sleep(0.01)
            assert not world.informer.is_unserved

    run_virtually(main())


def test_a_kind_that_somebody_finds_served_is_watched_at_once() -> None:
    async def main() -> None:
        world = World(LEADER_WORKER_SET)
        world.cluster.unserved_kinds.add(LEADER_WORKER_SET)
        async with world.following():
            world.cluster.unserved_kinds.clear()
            world.informer.notice_served()
            await asyncio.sleep(0.01)
            assert world.informer.is_current

    run_virtually(main())


def test_what_goes_with_its_crd_is_announced_and_what_comes_with_the_next_one_too() -> None:
    async def main() -> None:
        world = World(LEADER_WORKER_SET)
        world.cluster.create(LEADER_WORKER_SET, group())
        world.cluster.create(LEADER_WORKER_SET, group("other"))
        async with world.following():
            world.announced.clear()
            world.watch.lose()  # one of the two ends is not heard of
            del world.cluster.objects[LEADER_WORKER_SET, "default", "other"]
            world.watch.lose()
            world.watch.remove_crd(LEADER_WORKER_SET)
            await asyncio.sleep(10)
            assert not world.informer.is_current
            assert len(world.informer.cache) == 0
            assert sorted(world.announced) == ["default/chat", "default/other"]
            world.announced.clear()
            world.cluster.unserved_kinds.clear()
            world.cluster.create(LEADER_WORKER_SET, group())
            world.informer.notice_served()
            await asyncio.sleep(10)
            assert world.informer.is_current
            assert world.announced == ["default/chat"]

    run_virtually(main())


def test_nothing_is_kept_after_its_end() -> None:
    async def main() -> None:
        world = World()
        world.cluster.create(CONFIG_MAP, config_map("plan", a="1"))
        async with world.following():
            pass
        assert not world.informer.is_current
        assert world.seen() == {}

    run_virtually(main())


def test_informers_stand_for_their_own_kinds_and_namespaces_and_do_not_list_together() -> None:
    async def main() -> None:
        watch = FakeWatch(FakeCluster())
        informers = Informers(
            watch,
            scopes_of(dict.fromkeys((CONFIG_MAP, SERVICE), LABEL_DEPLOYMENT), ("a", "b")),
            lambda namespace, name: None,
            period_seconds=PERIOD,
        )
        assert informers.find(POD, "a") is None
        assert informers.find(SERVICE, "c") is None
        found = informers.find(SERVICE, "b")
        assert found is not None
        assert found.scope == Scope(SERVICE, "b", LABEL_DEPLOYMENT)
        task = asyncio.create_task(informers.run())
        assert await informers.wait_tried(10)
        assert len(watch.lists) == 4
        await asyncio.sleep(0.8 * PERIOD)
        assert len(watch.lists) == 4
        await asyncio.sleep(0.1 * PERIOD)
        assert 4 < len(watch.lists) < 8
        await asyncio.sleep(0.15 * PERIOD)
        assert len(watch.lists) == 8
        task.cancel()
        await asyncio.wait([task])

    run_virtually(main())
