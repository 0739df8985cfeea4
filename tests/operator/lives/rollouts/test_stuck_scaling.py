"""A Deployment whose controller only scales it for ever is released, and no other one is touched:
sizes, annotations and strategies are drawn, and the controller itself shows if it is stuck."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from atom_operator import constants
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.observe import observe
from atom_operator.cluster.replicas.stuck_scaling import release_stuck_scaling
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD, Manifest, ObjectKey, Observed
from atom_operator.kinds import REPLICA_SET
from tests.operator.lives.test_generated_life import broken, scene, told
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.state import START, is_ready
from tests.support.operator.builders_operator import atom_deployment, gpu_node

_KEY = ObjectKey("default", "chat")
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_DRAWN = 300
_NOW = START.replace(year=START.year + 1)


class _Scaled:
    """A Deployment in the middle of a rollout whose number of replicas is drawn anew, with another
    template at the same time."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.cluster = InMemoryCluster(nodes=[gpu_node("a")])
        self.cluster.kubelets.load_seconds = 5.0
        self.state = self.cluster.state
        strategies = ("Recreate", "RollingUpdate", "RollingUpdate")
        parent = self.state.create(ATOM_DEPLOYMENT, atom_deployment("chat"))
        self.uid = parent["metadata"]["uid"]
        self.item = self.state.create(DEPLOYMENT, _deployment(draw.randint(1, 4)), parent)
        self.cluster.advance(60)
        for number in range(draw.randint(2, 5)):
            spec = self.item["spec"]
            spec["strategy"] = _strategy(draw, draw.choice(strategies))
            spec["paused"] = draw.random() < 0.4
            if draw.random() < 0.6:
                spec["replicas"] = draw.randint(1, 4)
            if draw.random() < 0.6:
                spec["template"] = _template(f"{number}", ready=draw.random() < 0.3)
            self._write()
            if draw.random() < 0.5:
                self.cluster.act()  # the next change comes before all controllers have looked
            else:
                self.cluster.advance(draw.choice((1, 4, 30)))
        self.item["spec"]["paused"] = False
        if draw.random() < 0.5:  # back to the first template, and then to another one in fewer
            self.item["spec"]["template"] = _template("first", ready=True)
            self._write()
            self.cluster.act()
            self.item["spec"]["replicas"] = max(1, self.item["spec"]["replicas"] - 1)
        self.item["spec"]["template"] = _template("last", ready=True)
        self._write()
        self.cluster.advance(120)

    def _write(self) -> None:
        self.item["metadata"]["generation"] += 1
        self.cluster.api.touch(self.item)

    @property
    def sets(self) -> dict[str, Manifest]:
        return {item["metadata"]["name"]: item for item in self.state.all(REPLICA_SET)}

    @property
    def is_stuck(self) -> bool:
        """Whether the controller would take the next look for a scaling, too."""
        wanted = str(self.item["spec"]["replicas"])
        return any(
            item["spec"]["replicas"] and item["metadata"]["annotations"][_DESIRED] != wanted
            for item in self.sets.values()
        )

    @property
    def has_rolled_out(self) -> bool:
        pods = [pod for pod in self.state.all(POD) if _revision(pod) == "last"]
        return len(pods) == self.item["spec"]["replicas"] and all(map(is_ready, pods))

    def observed(self) -> Observed:
        found = asyncio.run(observe(self.cluster.api, _KEY, self.uid))
        return replace(found, at=_NOW)

    def release(self) -> None:
        asyncio.run(release_stuck_scaling(self.cluster.api, _KEY, self.observed()))


def _deployment(replicas: int) -> Manifest:
    return {
        "metadata": {
            "name": "chat",
            "namespace": "default",
            "labels": {constants.LABEL_DEPLOYMENT: "chat"},
        },
        "spec": {"replicas": replicas, "template": _template("first", ready=True)},
    }


def _template(revision: str, *, ready: bool) -> Manifest:
    image = "registry.test/atom:1" if ready else "registry.test/atom:typo"
    return {
        "metadata": {
            "labels": {constants.LABEL_DEPLOYMENT: "chat"},
            "annotations": {constants.ANNOTATION_REVISION: revision},
        },
        "spec": {"containers": [{"name": "engine", "image": image}]},
    }


def _strategy(draw: random.Random, kind: str) -> Manifest:
    if kind == "Recreate":
        return {"type": kind}
    surge = draw.choice((0, 1))
    steps = {"maxSurge": surge, "maxUnavailable": 0 if surge else draw.choice((1, 2))}
    return {"type": kind, "rollingUpdate": steps}


def _revision(pod: Manifest) -> Any:
    return pod["metadata"]["annotations"].get(constants.ANNOTATION_REVISION)


def test_a_stuck_deployment_is_released_and_no_other_one_is_touched() -> None:
    seen: set[tuple[bool, str]] = set()
    for number in range(_DRAWN):
        scaled = _Scaled(number)
        before, stuck = len(scaled.cluster.api.writes), scaled.is_stuck
        seen.add((stuck, scaled.item["spec"].get("strategy", {}).get("type", "")))
        assert stuck is not scaled.has_rolled_out, number
        pods = [pod["metadata"]["name"] for pod in scaled.state.all(POD)]
        scaled.release()
        assert (len(scaled.cluster.api.writes) > before) is stuck, number
        # The write itself changes no pod; the controller goes on with the rollout.
        assert [pod["metadata"]["name"] for pod in scaled.state.all(POD)] == pods
        scaled.cluster.advance(300)
        assert scaled.has_rolled_out, number
        written = len(scaled.cluster.api.writes)
        scaled.release()
        assert len(scaled.cluster.api.writes) == written
    kinds = ("Recreate", "RollingUpdate")
    assert seen == {(stuck, kind) for stuck in (True, False) for kind in kinds}


def test_a_chart_without_the_right_stops_no_pass() -> None:
    number = next(number for number in range(_DRAWN) if _Scaled(number).is_stuck)
    scaled = _Scaled(number)
    scaled.cluster.api.refused_kinds[REPLICA_SET] = "replicasets is forbidden"
    scaled.release()
    with pytest.raises(RefusedError):
        asyncio.run(scaled.cluster.api.apply(REPLICA_SET, next(iter(scaled.sets.values()))))
    assert not scaled.has_rolled_out


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("devices", "nodes", "replicas", "steps"),
    [
        (
            8,
            3,
            2,
            (("ask_for_an_image", "registry.test/atom:bad", 20), ("pause_the_workload", True, 400)),
        ),
        # The deadline that the pods before missed is not that of the pods which are asked for now.
        (
            4,
            2,
            3,
            (("ask_for_a_length", 512, 20), ("evict_by_its_kubelet", 2, 1300)),
        ),
    ],
    ids=("fewer replicas after a pause", "a deadline of other pods"),
)
def test_a_change_in_fewer_replicas_rolls_out(
    devices: int, nodes: int, replicas: int, steps: Any
) -> None:
    pages = devices == 4
    where = scene(
        devices=devices,
        nodes=nodes,
        replicas=replicas,
        claim="" if pages else "zone",
        hugepages=pages,
        gitops=not pages,
    )
    assert broken(told(where, steps)) is None
