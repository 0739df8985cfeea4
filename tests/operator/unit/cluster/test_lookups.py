"""What others have in common with an AtomDeployment is looked up by term, and never by a scan: the
same answers, at the price of those alone that have it."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atom_operator.cluster.claims import ClaimReader
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.object_cache import ObjectCache, StoredObject
from atom_operator.constants import LABEL_DEPLOYMENT, LABEL_PROFILE
from atom_operator.domain import DEPLOYMENT, VOLUME_CLAIM, ChildKey, Manifest, ObjectKey
from atom_operator.domain.lookup_terms import claim_term, port_terms, route_terms, terms_of
from atom_operator.kinds import HTTP_ROUTE
from atom_operator.plan.route_collisions import route_collisions
from atom_operator.plan.volume_claims.pvc_access import also_mounted_by, also_on_port
from atom_operator.reconcile.prerequisites import asked_by_others, look_at_routes
from atom_operator.reconcile.profiles.profile_users import ProfileUsers
from tests.support.operator.cached_cluster import followed
from tests.support.operator.fake_cluster import FakeCluster

_FEW = some.sampled_from


def route(
    name: str,
    gateways: list[tuple[str | None, str]],
    hosts: list[str],
    matches: list[tuple[str, str]],
) -> Manifest:
    rules = [
        {
            "matches": [
                {"path": {"value": path}, "headers": [{"name": "Model", "value": model}]}
                for path, model in matches
            ]
        }
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {LABEL_DEPLOYMENT: name},
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "parentRefs": [
                {"name": gateway, **({"sectionName": section} if section else {})}
                for section, gateway in gateways
            ],
            **({"hostnames": hosts} if hosts else {}),
            "rules": rules,
        },
    }


_ROUTES = some.lists(
    some.tuples(
        some.lists(some.tuples(_FEW([None, "a", "b"]), _FEW(["g", "h"])), min_size=1, max_size=2),
        some.lists(_FEW(["A.test", "a.test", "b.test"]), max_size=2),
        some.lists(some.tuples(_FEW(["/", "/v1"]), _FEW(["x", "y"])), min_size=1, max_size=2),
    ),
    min_size=1,
    max_size=8,
)


@given(_ROUTES)
def test_routes_that_share_a_term_hold_every_collision(asked: list[Any]) -> None:
    routes = [route(f"m{number}", *each) for number, each in enumerate(asked)]
    cache = ObjectCache()
    for each in routes:
        cache.put(StoredObject.of(each))
    ours = routes[0]
    key = ObjectKey("default", "m0")
    sharing = [item for term in route_terms(ours) for item in cache.find(term)]
    found = {item["metadata"]["name"]: item for item in sharing}
    assert route_collisions(key, ours, found.values()) == route_collisions(key, ours, routes)


def workload(name: str, claims: list[str], ports: list[int]) -> Manifest:
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    host_ports = [{"hostPort": each} for each in ports]
    container = {"name": "engine", "image": "atom:1", "ports": host_ports}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {LABEL_DEPLOYMENT: name},
            "resourceVersion": "1",
        },
        "spec": {"template": {"spec": {"volumes": volumes, "containers": [container]}}},
    }


@given(
    some.lists(
        some.tuples(
            some.lists(_FEW(["a", "b", "c"]), max_size=3, unique=True),
            some.lists(_FEW([80, 81]), max_size=2, unique=True),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_pods_that_share_a_term_are_all_that_ask_for_the_same(asked: list[Any]) -> None:
    found = [workload(f"m{number}", *each) for number, each in enumerate(asked)]
    cache, key = ObjectCache(), ObjectKey("default", "m0")
    for each in found:
        cache.put(StoredObject.of(each))
    pod_spec = found[0]["spec"]["template"]["spec"]
    for claim in asked[0][0]:
        beside = cache.find(claim_term("default", claim))
        assert also_mounted_by(key, claim, beside) == also_mounted_by(key, claim, found)
    beside = [item for term in port_terms(pod_spec) for item in cache.find(term)]
    assert set(also_on_port(key, pod_spec, beside)) == set(also_on_port(key, pod_spec, found))


def test_an_object_that_changes_or_goes_leaves_its_terms() -> None:
    cache, first = ObjectCache(), workload("m0", ["a"], [])
    cache.put(StoredObject.of(first))
    second = workload("m0", ["b"], [])
    second["metadata"]["resourceVersion"] = "2"
    cache.put(StoredObject.of(second))
    assert cache.find(claim_term("default", "a")) == []
    assert len(cache.find(claim_term("default", "b"))) == 1
    cache.forget("default", "m0")
    assert cache.find(claim_term("default", "b")) == []
    assert terms_of({"metadata": {"name": "x"}, "data": {}}) == ()


@pytest.mark.parametrize("many", [10, 200])
async def test_a_look_decodes_no_more_objects_where_there_are_more_of_them(many: int) -> None:
    cluster = FakeCluster()
    for number in range(many):
        name = f"m{number}"
        gateways: list[tuple[str | None, str]] = [(None, "gate")]
        cluster.create(HTTP_ROUTE, route(name, gateways, [], [("/", name)]))
        claims = [f"claim-{number}", "everyone's", *(["shared"] if number < 3 else [])]
        cluster.create(DEPLOYMENT, workload(name, claims, []))
        for claim in claims:
            mode = "ReadWriteMany" if claim == "everyone's" else "ReadWriteOnce"
            metadata = {"name": claim, "namespace": "default"}
            claimed = {"metadata": metadata, "spec": {"accessModes": [mode]}}
            cluster.create(VOLUME_CLAIM, claimed)
    async with followed(cluster) as world:
        children = {ChildKey(HTTP_ROUTE, "m0"): cluster.find(HTTP_ROUTE, "m0")}
        pods = cluster.find(DEPLOYMENT, "m0")["spec"]["template"]["spec"]
        key, fleet = ObjectKey("default", "m0"), FleetReader(world.port, lambda: 0.0)
        decoded = 0
        original = StoredObject.manifest

        def counted(stored: StoredObject) -> Manifest:
            nonlocal decoded
            decoded += 1
            return original(stored)

        with mock.patch.object(StoredObject, "manifest", counted):
            await look_at_routes(world.port, key, children)
            await asked_by_others(world.port, ClaimReader(world.port), fleet, key, pods)
        assert decoded == 1 + 1 + 3  # its route, its claim, and the three that share one


def test_a_profile_or_a_namespace_wakes_its_own_users_alone() -> None:
    users = ProfileUsers()
    for number in range(1000):
        users.note(ObjectKey(f"team-{number % 10}", f"m{number}"), f"p{number % 100}")
    assert len(users.of_profile("p7")) == 10
    assert users.of_profile("unknown") == ()
    assert {key.namespace for key in users.of_namespace("team-3")} == {"team-3"}
    key = ObjectKey("team-7", "m7")
    users.note(key, "p8")
    assert key not in users.of_profile("p7")
    assert key in users.of_profile("p8")
    users.forget(key)
    assert key not in users.of_profile("p8")
    assert key not in users.of_namespace("team-7")


@pytest.mark.parametrize("label", [LABEL_PROFILE, "env"])
def test_events_of_profiles_and_namespaces_say_whose_they_are(label: str) -> None:
    from atom_operator.cluster.informer import ALL, Informers
    from atom_operator.domain import ATOM_PROFILE, NAMESPACE
    from atom_operator.handlers.runtime import followed as scopes
    from tests.support.operator.fake_watch import FakeWatch

    async def test() -> list[tuple[str, str]]:
        cluster, told = FakeCluster(), []
        watch = FakeWatch(cluster)
        informers = Informers(
            watch, scopes(), lambda *place: told.append(place), period_seconds=300.0
        )
        task = asyncio.create_task(informers.run())
        assert await informers.wait_tried(30)
        labels = {label: "site"}
        metadata = {"name": "team-a", "namespace": "", "labels": labels}
        cluster.create(NAMESPACE, {"metadata": metadata})
        cluster.create(ATOM_PROFILE, {"metadata": {"name": "site", "namespace": ""}, "spec": {}})
        watch.announce()
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return told

    assert sorted(asyncio.run(test())) == [("", "site"), ("team-a", ALL)]


def test_a_status_of_ours_is_no_news_to_those_that_take_the_profile() -> None:
    from atom_operator.cluster.cached import CachedCluster
    from atom_operator.cluster.informer import Informers
    from atom_operator.cluster.known_deployments import KnownDeployments
    from atom_operator.domain import ATOM_PROFILE
    from atom_operator.handlers.runtime import followed as scopes
    from tests.support.operator.fake_watch import FakeWatch

    async def test() -> list[tuple[str, str]]:
        cluster, told = FakeCluster(), []
        cluster.create(ATOM_PROFILE, {"metadata": {"name": "site", "namespace": ""}, "spec": {}})
        watch = FakeWatch(cluster)
        informers = Informers(
            watch, scopes(), lambda *place: told.append(place), period_seconds=300.0
        )
        cached = CachedCluster(cluster, informers, KnownDeployments())
        task = asyncio.create_task(informers.run())
        assert await informers.wait_tried(30)
        told.clear()
        await cached.apply_profile_status("site", {"deployments": 3, "waiting": 0})
        for _ in range(5):
            watch.announce()
            await asyncio.sleep(0)
        stored = await cached.get(ATOM_PROFILE, "", "site")
        assert stored is not None
        assert stored["status"]["deployments"] == 3
        assert told == []
        cluster.find(ATOM_PROFILE, "site", "")["spec"]["proxy"] = {"http": "http://p:1"}
        cluster.touch(cluster.find(ATOM_PROFILE, "site", ""))
        for _ in range(5):
            watch.announce()
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return told

    assert asyncio.run(test()) == [("", "site")]
