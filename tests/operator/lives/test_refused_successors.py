"""A change of pods that would take the place of those that serve begins once new ones would be
admitted; until then what serves stays, and a refusal is told in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.domain import ObjectKey
from atom_operator.reconcile.rollout_train import RolloutTrain
from tests.operator.lives.test_generated_life import FULL, REFUSALS, broken, scene, told
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator_life.happenings import HAPPENINGS
from tests.support.operator_life.life import Life

_WORDS = {
    "a quota of limits without room": "exceeded quota: team, requested: limits.memory=",
    "a quota of fewer pods than there are": "exceeded quota: team, requested: pods=1",
    "a limit range": "maximum memory usage per Container is 1Gi",
    "a policy": 'admission webhook "a-policy.example.org" denied the request: the label team',
    "a policy engine that is down": 'failed calling webhook "a-policy.example.org"',
}


class Changed:
    """A life that has begun, whose pods are asked to be others."""

    def __init__(self, where: Any) -> None:
        self.life = Life(where)
        self.life.cluster.advance(400)
        self.before = {pod["metadata"]["uid"] for pod in self.life.pods}

    def happens(self, name: str, *arguments: Any) -> None:
        self.life.promises.happens(name)
        HAPPENINGS[name].does(self.life, *arguments)
        self.life.cluster.advance(100)

    @property
    def serving(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.life.pods if is_ready(pod)}

    @property
    def stays(self) -> bool:
        return self.before <= {pod["metadata"]["uid"] for pod in self.life.pods}

    @property
    def is_new(self) -> bool:
        """All that serve are what is asked for now."""
        lengths = [pod["spec"]["containers"][0]["args"] for pod in self.life.pods]
        return all(args[args.index("--max-model-len") + 1] == "1024" for args in lengths)

    def said(self, kind: str) -> dict[str, Any]:
        conditions = (self.life.parent or {})["status"]["conditions"]
        (found,) = [item for item in conditions if item["type"] == kind]
        return dict(found)


@pytest.fixture
def begin() -> Iterator[Any]:
    begun: list[Changed] = []

    def _begin(where: Any) -> Changed:
        begun.append(Changed(where))
        return begun[-1]

    yield _begin
    for changed in begun:
        changed.life.operator.close()


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize("where", ["alone", "groups"])
@pytest.mark.parametrize("who", REFUSALS)
def test_pods_stay_until_those_that_follow_would_be_admitted(
    begin: Any, who: str, where: str
) -> None:
    changed = begin(FULL[where])
    *refuses, _ = REFUSALS[who]
    changed.happens(*refuses)
    changed.happens("ask_for_a_length", 1024)
    assert changed.stays
    said = changed.said("Ready")
    assert (said["status"], _WORDS[who] in said["message"]) == ("False", True)
    if where == "groups":
        progress = changed.said("Progressing")
        assert (progress["reason"], "urgent" in progress["message"]) == ("RolloutWaits", False)
    else:
        rollout = changed.life.parent["status"]["rollout"]
        assert rollout["strategy"] == "Surge"
        assert _WORDS[who] in rollout["reason"]
    for lifts in ("lift_the_quota", "lift_the_range"):
        changed.happens(lifts)
    changed.happens("refuse_by_a_policy", ())
    changed.happens("let_the_policy_engine_be_down", ())
    changed.life.cluster.advance(900)
    assert changed.is_new
    assert changed.said("Ready")["status"] == "True"


@pytest.mark.sampled(2)
@pytest.mark.pairs
@pytest.mark.parametrize("seconds", [1, 30, 200])
@pytest.mark.parametrize("change", [("ask_for_memory", 48), ("ask_for_a_frontend", 2)])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_quota_of_limits_in_the_middle_of_a_rollout_of_groups_stops_no_more_of_them(
    replicas: int, change: tuple[str, int], seconds: int
) -> None:
    """A group is away when the new ones get limits for it, and its successor stays refused."""
    where = scene(nodes=4, replicas=replicas, groups=True)
    begins, limits = (*change, seconds), ("limit_by_a_quota", "limits.memory", 0, 400)
    assert broken(told(where, (begins, limits, ("lift_the_quota", 400)))) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("who", [who for who in REFUSALS if "quota" not in who])
def test_pods_stay_while_an_old_one_waits_for_a_node(begin: Any, who: str) -> None:
    """What waits is not what is refused: no old pod that goes would let a new one come. The words
    of a quota stand until its ReplicaSet tries again, which is for minutes after it is lifted."""
    changed = begin(scene(devices=2, nodes=3, replicas=3, per_pod_gib=100, node_gib=110))
    changed.happens("drain_a_node", 0)
    changed.before = changed.serving
    assert len(changed.before) == 2
    changed.happens(*REFUSALS[who][:-1])
    changed.happens("ask_for_a_length", 1024)
    changed.life.cluster.advance(400)
    assert changed.stays
    assert changed.life.parent["status"]["rollout"]["strategy"] == "Surge"
    assert _WORDS[who] in changed.said("Ready")["message"]
    for lifts in ("lift_the_quota", "lift_the_range"):
        changed.happens(lifts)
    changed.happens("refuse_by_a_policy", ())
    changed.happens("let_the_policy_engine_be_down", ())
    changed.life.cluster.advance(300)
    assert len(changed.serving) == 2
    assert not changed.before & changed.serving


@pytest.mark.parametrize("nodes", [1, 2])
def test_pods_of_another_kind_stay_until_those_that_follow_would_be_admitted(
    begin: Any, nodes: int
) -> None:
    changed = begin(scene(devices=8, nodes=2, groups=nodes == 1))
    changed.life.cluster.settled.clear()  # the promises know of one kind in a life
    changed.life.cluster.clients.remove(changed.life.promises.watch)
    changed.happens("let_others_take_devices", 0, 8)
    changed.happens("let_others_take_devices", 1, 8)
    changed.happens("refuse_by_a_policy", REFUSALS["a policy"][1])
    changed.life.ask(parallelism={"tensor": 8 * nodes, "nodes": nodes})
    changed.life.cluster.advance(400)
    assert changed.stays
    assert _WORDS["a policy"] in changed.said("Progressing")["message"]
    changed.happens("refuse_by_a_policy", ())
    changed.happens("let_others_go")
    changed.life.cluster.advance(900)
    assert not changed.stays
    assert len(changed.life.pods) == nodes
    assert changed.said("Ready")["status"] == "True"


@pytest.mark.singles
@pytest.mark.parametrize(
    "error",
    [
        RefusedError('pods is forbidden: User "operator" cannot create resource "pods"', 403),
        RefusedError('admission webhook "old" does not support dry run', 400),
        TransientError("timed out after 30 s"),
    ],
)
@pytest.mark.parametrize("where", ["alone", "groups"])
def test_a_server_that_does_not_judge_holds_no_rollout_up(
    begin: Any, where: str, error: Any
) -> None:
    changed = begin(FULL[where])
    changed.life.cluster.api.refused_dry_run = error
    changed.happens("ask_for_a_length", 1024)
    changed.life.cluster.advance(900)
    assert changed.is_new
    assert changed.said("Ready")["status"] == "True"


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
def test_a_strategy_that_the_spec_names_is_kept(begin: Any, strategy: str) -> None:
    changed = begin(scene(devices=8))
    changed.happens("ask_for_a_strategy", strategy)
    changed.happens("refuse_by_a_policy", REFUSALS["a policy"][1])
    changed.happens("ask_for_a_length", 1024)
    assert not changed.stays
    assert changed.life.parent["status"]["rollout"]["strategy"] == strategy


def test_a_rollout_that_would_be_refused_takes_no_turn_from_others(begin: Any) -> None:
    changed, budget = begin(FULL["groups"]), RolloutTrain(1)
    object.__setattr__(changed.life.operator.reconciler.memories, "train", budget)
    changed.happens("refuse_by_a_policy", REFUSALS["a policy"][1])
    changed.happens("ask_for_a_length", 1024)
    assert changed.stays
    assert budget.take(ObjectKey("default", "other")) is None
