"""A pod on a sick device is moved where there is a place, once that lasts, and else told of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD
from atom_operator.kinds import RESOURCE_SLICE
from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.operator.builders_operator import gpu_pod
from tests.support.operator.status_shown import ABSENT
from tests.support.operator_life.happenings import HAPPENINGS
from tests.support.operator_life.life import Life
from tests.support.operator_life.surroundings import ZONE

_LOOK_SECONDS = 340  # more than a resync, less than a device is sick before a pod is moved
_LASTS_SECONDS = 1000
_CLAIMS = pytest.mark.parametrize("begin", [True], indirect=True, ids=["claims"])


class Watched:
    """A life that has begun, with what a test asks of it."""

    def __init__(self, **changes: Any) -> None:
        self.life = Life(scene(**changes))
        self.life.cluster.advance(400)

    def happens(self, name: str, *arguments: Any, seconds: float) -> None:
        self.life.promises.happens(name)
        HAPPENINGS[name].does(self.life, *arguments)
        self.life.cluster.advance(seconds)

    @property
    def places(self) -> dict[str, str]:
        """The node of each pod."""
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in self.life.pods}

    @property
    def told(self) -> dict[str, Any]:
        conditions = (self.life.parent or {})["status"]["conditions"]
        found = next((item for item in conditions if item["type"] == "DevicesHealthy"), ABSENT)
        return dict(found)

    def number_of(self, node: str) -> int:
        return [self.life.node(number) for number in range(len(self.life.nodes))].index(node)

    def sick(self, pod: str, seconds: float) -> None:
        """One device of its node falls sick, by whatever its kubelet says."""
        number = self.number_of(self.places[pod])
        self.happens("let_devices_fall_sick", number, 1, "kubelet", seconds=seconds)

    def evictions(self) -> list[str]:
        return [write for write in self.life.cluster.api.writes if write.startswith("evict")]


@pytest.fixture(params=[False, True], ids=["plugin", "claims"])
def begin(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Of a life whose devices a plugin gives, and of one whose devices are claimed."""
    begun: list[Watched] = []

    def _begin(**changes: Any) -> Watched:
        begun.append(Watched(claimed=request.param and changes.get("devices") != 0, **changes))
        return begun[-1]

    yield _begin
    for watched in begun:
        watched.life.operator.close()


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("said_by", ["plugin", "kubelet", "engine", "taint"])
def test_a_pod_is_moved_to_a_free_node_once_its_device_has_been_sick_for_long(
    begin: Any, said_by: str
) -> None:
    watched = begin(devices=8, nodes=2)
    ((pod, node),) = watched.places.items()
    watched.happens(
        "let_devices_fall_sick", watched.number_of(node), 1, said_by, seconds=_LOOK_SECONDS
    )
    assert watched.places == {pod: node}
    assert watched.told["status"] == "False"
    assert watched.told["reason"] == "DeviceUnhealthy"
    assert f"pod {pod} on node {node}: " in watched.told["message"]
    watched.life.cluster.advance(_LASTS_SECONDS)
    ((successor, place),) = watched.places.items()
    assert successor != pod
    assert place != node
    assert watched.evictions() == [f"evict Pod/{pod}"]
    assert len(watched.life.cluster.serving("chat")) == 1
    assert watched.told["reason"] == "Absent"


@pytest.mark.rotated
def test_a_device_that_is_sick_for_a_moment_moves_nothing(begin: Any) -> None:
    watched = begin(devices=8, nodes=2)
    ((pod, node),) = watched.places.items()
    number = watched.number_of(node)
    for _ in range(4):
        watched.happens("let_devices_fall_sick", number, 8, "kubelet", seconds=300)
        watched.happens("let_devices_recover", number, seconds=100)
    assert watched.places == {pod: node}
    assert watched.evictions() == []


@pytest.mark.rotated
def test_without_another_place_the_pod_stays_until_one_comes_free(begin: Any) -> None:
    watched = begin(devices=8, nodes=2)
    ((pod, node),) = watched.places.items()
    other = 1 - watched.number_of(node)
    watched.happens("let_others_take_devices", other, 8, seconds=1)
    watched.happens(
        "let_devices_fall_sick", watched.number_of(node), 1, "kubelet", seconds=_LASTS_SECONDS
    )
    assert watched.places == {pod: node}
    assert watched.told["reason"] == "NoOtherPlace"
    assert "free: " in watched.told["message"]
    conditions = {
        item["type"]: item["status"] for item in watched.life.parent["status"]["conditions"]
    }
    assert (conditions["Ready"], conditions["Degraded"]) == ("True", "False")
    watched.happens("let_others_go", seconds=_LOOK_SECONDS)
    assert list(watched.places.values()) == [watched.life.node(other)]


@pytest.mark.rotated
def test_healthy_devices_of_its_own_node_are_a_place(begin: Any) -> None:
    watched = begin(devices=4, nodes=1)
    ((pod, node),) = watched.places.items()
    watched.happens("let_devices_fall_sick", 0, 1, "kubelet", seconds=_LASTS_SECONDS)
    ((successor, place),) = watched.places.items()
    assert (successor != pod, place) == (True, node)
    assert watched.told["reason"] == "Absent"


@pytest.mark.parametrize("begin", [False], indirect=True, ids=["plugin"])
def test_whose_device_is_sick_is_not_guessed(begin: Any) -> None:
    """Two pods of four on one node: either may have it."""
    watched = begin(devices=4, nodes=1, replicas=2)
    watched.happens("let_devices_fall_sick", 0, 1, "plugin", seconds=2 * _LASTS_SECONDS)
    assert watched.evictions() == []
    assert (watched.told["status"], watched.told["reason"]) == ("Unknown", "DeviceInDoubt")
    assert "1 of 8 amd.com/gpu of the node are unhealthy" in watched.told["message"]


@_CLAIMS
def test_whose_device_is_sick_a_claim_says(begin: Any) -> None:
    watched = begin(devices=4, nodes=2, replicas=2)
    pod = next(iter(watched.places))
    number = watched.number_of(watched.places[pod])
    watched.happens("let_devices_fall_sick", number, 1, "plugin", seconds=_LOOK_SECONDS)
    assert watched.told["reason"] == "DeviceUnhealthy"
    assert "its driver publishes device gpu-0 no more, since" in watched.told["message"]
    watched.life.cluster.advance(_LASTS_SECONDS)
    assert len(watched.evictions()) == 1


@_CLAIMS
def test_what_a_driver_still_offers_moves_only_what_serves_no_more(begin: Any) -> None:
    """The scheduler, which does not hear the kubelet, may give the same devices again."""
    watched = begin(devices=8, nodes=2)
    ((pod, node),) = watched.places.items()
    watched.life.cluster.make_sick(node, 1, told=True, fail=False, kept_off="")
    watched.life.cluster.advance(_LASTS_SECONDS)
    assert watched.places == {pod: node}
    assert watched.told["reason"] == "DeviceUnhealthy"
    assert "claim:gpus/gpus gpu-0 unhealthy" in watched.told["message"]
    assert "it stays while it serves" in watched.told["message"]
    watched.life.cluster.make_sick(node, 1, told=True, fail=True, kept_off="")
    watched.life.promises.happens("its engine ends")
    watched.life.cluster.advance(_LOOK_SECONDS)
    assert watched.evictions() == [f"evict Pod/{pod}"]


@_CLAIMS
def test_without_another_place_what_a_driver_still_offers_is_none(begin: Any) -> None:
    watched = begin(devices=8, nodes=1)
    before = watched.places
    watched.life.promises.happens("its engine ends")
    watched.life.cluster.make_sick(*before.values(), 1, told=True, fail=True, kept_off="")
    watched.life.cluster.advance(_LASTS_SECONDS)
    assert watched.places == before
    assert watched.told["reason"] == "NoOtherPlace"


@_CLAIMS
def test_a_driver_that_is_away_says_nothing_of_devices(begin: Any) -> None:
    watched = begin(devices=8, nodes=2)
    before = watched.places
    watched.life.promises.happens("the driver is away")
    watched.life.remove_all(RESOURCE_SLICE)
    watched.life.cluster.advance(2 * _LASTS_SECONDS)
    assert watched.places == before
    assert watched.told["reason"] == "Absent"


@pytest.mark.rotated
def test_pods_leave_a_node_one_after_the_other(begin: Any) -> None:
    watched = begin(devices=4, nodes=2, replicas=3)
    full = max(watched.places.values(), key=list(watched.places.values()).count)
    watched.happens("let_devices_fall_sick", watched.number_of(full), 8, "plugin", seconds=10)
    fewest = 3
    for _ in range(40):
        watched.life.cluster.advance(50)
        fewest = min(fewest, len(watched.life.cluster.serving("chat")))
    assert fewest == 2  # one at a time, and the last stays: the other node is full then
    assert len(watched.evictions()) == 1
    assert list(watched.places.values()).count(full) == 1
    assert watched.told["reason"] == "NoOtherPlace"


@pytest.mark.rotated
def test_a_group_is_moved_whole_where_all_of_it_has_room(begin: Any) -> None:
    watched = begin(devices=8, nodes=3, groups=True)
    before = watched.places
    (sick,) = {node for name, node in before.items() if name == "chat-0"}
    watched.happens(
        "let_devices_fall_sick", watched.number_of(sick), 1, "kubelet", seconds=3 * _LASTS_SECONDS
    )
    assert sick not in watched.places.values()
    assert len(watched.life.cluster.serving("chat")) == 1


REFUSALS: dict[str, tuple[Any, Any, str]] = {  # what refuses, what lifts it, and its words
    "a quota that counts what the pod does not name": (
        ("limit_by_a_quota", "limits.memory", 0),
        ("lift_the_quota",),
        "failed quota: team: must specify limits.memory for: engine",
    ),
    "a quota of fewer pods than there are": (
        ("limit_by_a_quota", "pods", -1),
        ("lift_the_quota",),
        "exceeded quota: team, requested: pods=1, used: pods=",
    ),
    "a quota of fewer devices than there are": (
        ("limit_by_a_quota", "requests.amd.com/gpu", -1),
        ("lift_the_quota",),
        "exceeded quota: team, requested: ",
    ),
    "a limit range": (
        ("limit_by_a_range", {"max": {"memory": "1Gi"}}),
        ("lift_the_range",),
        "maximum memory usage per Container is 1Gi",
    ),
    "a policy": (
        ("refuse_by_a_policy", (POD,)),
        ("refuse_by_a_policy", ()),
        'admission webhook "a-policy.example.org" denied the request: the label team is missing',
    ),
}
SCENES = {
    "alone": {"devices": 8, "nodes": 2},
    "in a group": {"devices": 8, "nodes": 3, "groups": True},
}


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("where", SCENES)
@pytest.mark.parametrize("who", REFUSALS)
def test_a_pod_stays_while_its_successor_would_be_refused(begin: Any, who: str, where: str) -> None:
    refuses, lifts, words = REFUSALS[who]
    watched = begin(**SCENES[where])
    before = watched.places
    watched.happens(*refuses, seconds=10)
    watched.sick("chat-0" if "chat-0" in before else next(iter(before)), _LASTS_SECONDS)
    assert watched.places == before
    assert watched.evictions() == []
    assert len(watched.life.cluster.serving("chat")) == 1
    assert (watched.told["status"], watched.told["reason"]) == ("False", "SuccessorRefused")
    assert words in watched.told["message"]
    told = watched.told
    watched.life.cluster.advance(_LASTS_SECONDS)
    assert watched.told == told  # in words that do not change from look to look
    watched.happens(*lifts, seconds=_LASTS_SECONDS)
    assert watched.places.keys() | watched.places.values() != before.keys() | before.values()
    assert len(watched.evictions()) == 1
    assert watched.told["reason"] == "Absent"


@pytest.mark.rotated
def test_a_pod_stays_while_the_operator_may_not_ask_for_its_successor(begin: Any) -> None:
    watched = begin(devices=8, nodes=2)
    before = watched.places
    words = 'User "operator" cannot create resource "pods" in API group ""'
    watched.life.cluster.api.refused_dry_run = RefusedError(f"pods is forbidden: {words}", 403)
    watched.sick(*before, _LASTS_SECONDS)
    assert watched.places == before
    assert words in watched.told["message"]


@pytest.mark.singles
@pytest.mark.parametrize("where", SCENES)
@pytest.mark.parametrize("resource", ["pods", "requests.amd.com/gpu", "requests.memory"])
def test_what_a_quota_counts_of_the_pod_itself_is_room_for_its_successor(
    begin: Any, resource: str, where: str
) -> None:
    watched = begin(**SCENES[where])
    before = watched.places
    watched.happens("limit_by_a_quota", resource, 0, seconds=10)
    watched.sick("chat-0" if "chat-0" in before else next(iter(before)), 3 * _LASTS_SECONDS)
    assert len(watched.evictions()) == 1
    assert len(watched.life.cluster.serving("chat")) == 1
    assert watched.told["reason"] == "Absent"


@pytest.mark.rotated
def test_what_admission_adds_to_the_successor_needs_a_place_too(begin: Any) -> None:
    watched = begin(devices=8, nodes=2, per_pod_gib=110, node_gib=110)
    before = watched.places
    watched.happens("inject_a_sidecar", True, seconds=10)
    watched.sick(*before, _LASTS_SECONDS)
    assert watched.places == before
    assert watched.told["reason"] == "NoOtherPlace"
    assert "memory" in watched.told["message"]


def _after_a_surge(begin: Any) -> tuple[Watched, str]:
    """A spare pod came first, so that no pod may be away."""
    watched = begin(devices=8, nodes=2)
    watched.happens("ask_for_a_length", 512, seconds=_LOOK_SECONDS)
    strategy = watched.life.workload["spec"]["strategy"]
    assert strategy == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    (pod,) = watched.places
    return watched, pod


@pytest.mark.sampled(4)
@pytest.mark.parametrize("said_by", ["plugin", "kubelet", "engine", "taint"])
def test_what_a_sick_device_does_to_a_pod_after_a_surge_breaks_no_promise(
    begin: Any, said_by: str
) -> None:
    watched, pod = _after_a_surge(begin)
    number = watched.number_of(watched.places[pod])
    watched.happens("let_devices_fall_sick", number, 8, said_by, seconds=2 * _LASTS_SECONDS)
    assert watched.evictions() == [f"evict Pod/{pod}"]
    assert len(watched.life.cluster.serving("chat")) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("said_by", ["plugin", "kubelet", "taint"])
def test_a_pod_that_serves_on_a_sick_device_is_nobodys_to_end(begin: Any, said_by: str) -> None:
    """The watch over lives does not take a sick device for the end of what serves on it."""
    watched, pod = _after_a_surge(begin)
    number = watched.number_of(watched.places[pod])
    watched.happens("let_devices_fall_sick", number, 8, said_by, seconds=10)
    (found,) = watched.life.pods
    watched.life.state.delete_pod(found)
    with pytest.raises(AssertionError, match="what serves stays while it can: 0 serve, 1 did"):
        watched.life.cluster.advance(10)


@pytest.mark.parametrize("devices", [0, 4])
def test_pods_without_a_node_take_devices_or_do_not(begin: Any, devices: int) -> None:
    watched = begin(devices=devices)
    watched.happens("ask_for_replicas", 0, seconds=_LOOK_SECONDS)
    watched.happens("let_devices_fall_sick", 0, 8, "taint", seconds=10)
    watched.happens("ask_for_replicas", 1, seconds=_LOOK_SECONDS)
    assert list(watched.places.values()) == [None]
    assert watched.told["reason"] == "Absent"


def _partner(watched: Watched, node: str) -> None:
    """Put a pod of somebody else there, which takes nothing."""
    pod = gpu_pod("partner", node, 0)
    pod["metadata"] |= {"uid": "uid-partner", "labels": {"app": "partner"}}
    watched.life.cluster.api.put_pod(pod)


def _under_pressure(watched: Watched, _node: str, other: str) -> None:
    watched.happens(
        "put_a_node_under_pressure", watched.number_of(other), "disk-pressure", seconds=1
    )


def _near_another(watched: Watched, node: str, _other: str) -> None:
    """The pod is to be on the host of a pod that stays."""
    _partner(watched, node)
    selector = {"matchLabels": {"app": "partner"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    watched.life.ask(template={"spec": {"affinity": {"podAffinity": required}}})


def _spread(watched: Watched, _node: str, other: str) -> None:
    """The other node has a pod of those that are spread already."""
    _partner(watched, other)
    rule = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "partner"}},
    }
    labels = {"metadata": {"labels": {"app": "partner"}}}
    watched.life.ask(template={**labels, "spec": {"topologySpreadConstraints": [rule]}})


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize(
    ("closes", "words"),
    [
        (_under_pressure, "taint node.kubernetes.io/disk-pressure"),
        (_near_another, "required pod affinity"),
        (_spread, "topologySpreadConstraints"),
    ],
)
def test_a_pod_that_serves_stays_where_the_scheduler_would_give_no_other_place(
    begin: Any, closes: Any, words: str
) -> None:
    watched = begin(devices=8, nodes=2)
    ((_, node),) = watched.places.items()
    other = watched.life.node(1 - watched.number_of(node))
    closes(watched, node, other)
    watched.life.cluster.advance(600)
    ((pod, place),) = watched.places.items()
    assert place == node
    watched.sick(pod, seconds=_LOOK_SECONDS + _LASTS_SECONDS)
    assert watched.places == {pod: node}
    assert watched.evictions() == []
    if watched.told["reason"] != "DeviceUnhealthy":  # a driver that still offers what it has
        assert watched.told["reason"] == "NoOtherPlace"
        assert words in watched.told["message"]


@pytest.mark.sampled(2)
@pytest.mark.singles
@pytest.mark.parametrize("claimed", [False, True], ids=["plugin", "claims"])
@pytest.mark.parametrize("said_by", ["plugin", "kubelet", "engine", "taint"])
def test_memory_that_a_pod_waits_for_is_told_while_devices_are_sick_too(
    said_by: str, claimed: bool
) -> None:
    """The scheduler names the memory alone: no node passes it, so no device is looked at."""
    where = scene(devices=4, replicas=3, per_pod_gib=100, node_gib=110, claimed=claimed)
    assert broken(told(where, (("let_devices_fall_sick", 0, 8, said_by, 1300),))) is None


@pytest.mark.sampled(1)
@pytest.mark.singles
@pytest.mark.parametrize("claimed", [False, True], ids=["plugin", "claims"])
@pytest.mark.parametrize(
    "happens", [("cordon_a_node", 0), ("put_a_node_under_pressure", 0, "pid-pressure")]
)
def test_what_keeps_a_pod_off_a_node_is_told_while_its_devices_are_gone_too(
    happens: tuple[Any, ...], claimed: bool
) -> None:
    where = scene(devices=4, replicas=3, per_pod_gib=100, node_gib=110, claimed=claimed)
    gone = ("let_devices_fall_sick", 0, 8, "plugin", 400)
    assert broken(told(where, (gone, (*happens, 900)))) is None
