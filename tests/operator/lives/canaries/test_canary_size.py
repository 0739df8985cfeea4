"""A canary has as many pods as its share asks for, takes no more than those carry, and the others
keep what its requests need when they come back."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.in_memory_cluster.autoscalers import share_of_canary
from tests.support.in_memory_cluster.state import condition_of, is_ready
from tests.support.operator_life.canaries import canary_pods
from tests.support.operator_life.happenings import GOOD
from tests.support.operator_life.life import Life
from tests.support.operator_life.story import Scene

_START_SECONDS, _STEP_SECONDS = 400, 600
DAILY = (0, 3, 5, 16, 21)  # each method, with and without places for the largest share


@dataclass(frozen=True)
class Case:
    """A seed's shares of a model of so many replicas, and who moves them."""

    shares: tuple[int, ...]
    replicas: int
    method: str  # "" where nobody moves them
    load: float
    spare: int  # nodes beside those of the replicas; each has a place for one pod

    @property
    def needed(self) -> int:
        """The replicas that serve all requests."""
        return min(self.replicas, math.ceil(self.load)) if self.method else self.replicas

    def pods(self, share: int) -> int:
        return max(1, -(-share * self.needed // 100))


def drawn(seed: int) -> Case:
    draw = random.Random(seed)
    replicas = draw.choice((1, 2, 3, 4, 6, 10))
    shares = sorted(draw.sample((1, 5, 10, 25, 34, 50, 75, 90, 100), draw.randint(1, 3)))
    method = draw.choice(("", "HPA", "KEDA"))
    load = draw.choice((0.5, 1.5, replicas * 0.6, replicas * 1.0))
    case = Case(tuple(shares), replicas, method, max(0.5, load), 0)
    return replace(case, spare=min(draw.choice((1, 2, replicas)), 12 - case.needed))


class Sized(Life):
    """A life with a canary whose pods follow its share."""

    def __init__(self, case: Case) -> None:
        self.case = case
        super().__init__(
            Scene(
                devices=0,
                nodes=case.needed + case.spare,
                replicas=case.replicas,
                per_pod_gib=100,
                node_gib=110,
                scales=bool(case.method),
                keda=case.method == "KEDA",
                route=True,
            )
        )
        if case.method:
            self.state.load[self.name] = case.load
            bounds = {"minReplicas": 1, "maxReplicas": case.replicas}
            self.ask(autoscaling={"method": case.method, **bounds})
        self.cluster.advance(_START_SECONDS + 600)  # so long is nothing taken away

    def step(self, canary: dict[str, Any], seconds: int) -> None:
        self.ask(canary=canary)
        self.cluster.advance(seconds)

    @property
    def beside(self) -> int:
        assert self.workload is not None
        return int(self.workload["spec"]["replicas"])

    @property
    def share(self) -> int:
        return share_of_canary(self.state, self.name)

    @property
    def carrying(self) -> int:
        return sum(map(is_ready, canary_pods(self)))

    @property
    def said(self) -> str:
        return str((condition_of(self.parent or {}, "CanaryProgressing") or {})["message"])


def live(case: Case) -> None:
    life = Sized(case)
    try:
        assert life.beside == case.needed
        steps = [{"weight": share, "seconds": _STEP_SECONDS} for share in case.shares]
        canary = {"change": {"engine": {"image": GOOD[1]}}, "steps": steps}
        life.step(canary, 300)
        for number, share in enumerate(case.shares):
            _judge_step(life, case, share)
            enough = case.pods(share) <= case.spare
            if enough and number + 1 < len(case.shares):
                life.cluster.advance(_STEP_SECONDS)
        life.step({**canary, "decision": "Undo"}, 1)
        assert (life.share, life.beside) == (0, case.needed), "all requests come back"
        life.cluster.advance(1300)
        assert (canary_pods(life), life.beside) == ([], case.needed)
    finally:
        life.operator.close()


def _judge_step(life: Sized, case: Case, share: int) -> None:
    """Promises of every moment are watched by the life itself."""
    carrying, beside = life.carrying, life.beside
    assert beside == case.needed, "the others stay"
    if case.pods(share) <= case.spare:
        assert (life.share, carrying) == (share, case.pods(share)), life.said
    else:
        assert life.share < share or 100 * carrying >= share * beside
        assert f"{carrying} serve" in life.said


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", DAILY)
def test_a_canary_is_as_large_as_its_share(seed: int) -> None:
    live(drawn(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 220))
def test_a_canary_is_as_large_as_its_share_in_many_cases(seed: int) -> None:
    live(drawn(seed))
