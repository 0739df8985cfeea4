"""Which pairs of prefill and decode pods serve at each moment of a rollout, and which could.

A pair works if its pods write and read equal pages. A search over every order of single steps says
which orders keep such a pair; drawn rollouts say when the operator's order keeps it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from atom_operator.domain import Manifest
from tests.operator.lives.disaggregation.test_pair_rollout import Pairs
from tests.support.in_memory_cluster.state import is_ready
from tests.support.operator_life.callers import engines_that_serve, option
from tests.support.operator_life.surroundings import GatewayController

_GPU: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}
_LOADED_SECONDS, _ROLLED_SECONDS = 300.0, 4000.0
_PAGES = {"engine": {"blockSize": 32}}  # for 16
_NO_PAGES = {"engine": {"maxNumSeqs": 8}}


# ---- every order of single steps ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Role:
    """Count the pods of a role: old ones that serve, new ones that load, new ones that serve."""

    old: int
    loading: int = 0
    new: int = 0

    @property
    def serving(self) -> int:
        return self.old + self.new

    @property
    def pods(self) -> int:
        return self.serving + self.loading

    def steps(self, asked: int) -> Iterator[Role]:
        if self.new + self.loading < asked:
            yield replace(self, loading=self.loading + 1)
        if self.loading:
            yield replace(self, loading=self.loading - 1, new=self.new + 1)
        if self.old:
            yield replace(self, old=self.old - 1)


def is_kept(prefill: int, decode: int, spare: int, *, away: int, in_turn: bool) -> bool:
    """Return whether an order of steps ends a rollout and keeps a working pair at each moment, with
    at most `away` pods of both roles missing. in_turn: prefill pods first, then decode pods."""

    def is_good(first: Role, second: Role) -> bool:
        missing = max(0, prefill - first.serving) + max(0, decode - second.serving)
        pair = (first.old and second.old) or (first.new and second.new)
        fits = first.pods + second.pods <= prefill + decode + spare
        early = in_turn and second.pods != second.old and first != Role(0, 0, prefill)
        return bool(pair) and missing <= away and fits and not early

    todo, seen = [(Role(prefill), Role(decode))], set()
    while todo:
        first, second = state = todo.pop()
        if state in seen or not is_good(first, second):
            continue
        seen.add(state)
        if state == (Role(0, 0, prefill), Role(0, 0, decode)):
            return True
        todo += [(step, second) for step in first.steps(prefill)]
        todo += [(first, step) for step in second.steps(decode)]
    return False


_SIZES = tuple(itertools.product((1, 2, 3, 4), repeat=2))


@pytest.mark.parametrize(("prefill", "decode"), _SIZES)
def test_one_spare_device_keeps_a_pair_if_the_roles_alternate_unless_each_has_one_pod(
    prefill: int, decode: int
) -> None:
    """The old and the new pair take four devices, and no pod is missing meanwhile."""
    least = next(s for s in range(4) if is_kept(prefill, decode, s, away=0, in_turn=False))
    assert least == max(1, 4 - prefill - decode)


@pytest.mark.parametrize(("prefill", "decode"), _SIZES)
def test_roles_in_turn_lose_the_pair_once_with_any_number_of_devices(
    prefill: int, decode: int
) -> None:
    assert not is_kept(prefill, decode, prefill + decode, away=1, in_turn=True)


@pytest.mark.parametrize(("prefill", "decode"), _SIZES)
def test_with_one_pod_fewer_four_devices_are_enough(prefill: int, decode: int) -> None:
    least = next(s for s in range(4) if is_kept(prefill, decode, s, away=1, in_turn=False))
    assert least == max(0, 4 - prefill - decode)


# ---- what the operator keeps --------------------------------------------------------------------


class Moments:
    """Watch a pair at each moment: the pages of the pods that serve, and the pods that exist."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.found: list[tuple[list[str], list[str], int]] = []
        self.canaries: list[bool] = []  # whether the pair of a canary works
        pairs.cluster.settled.append(self._watch)

    def _watch(self) -> None:
        sides = [self._pages(name) for name in ("chat-prefill", "chat")]
        of_canary = [self._pages(name) for name in ("chat-canary-prefill", "chat-canary")]
        engines = [pod for pod in self.pairs.cluster.pods if _is_engine(pod)]
        self.found.append((*sides, len(engines)))
        self.canaries.append(bool({*of_canary[0]} & {*of_canary[1]}))

    def _pages(self, name: str) -> list[str]:
        pods = engines_that_serve(self.pairs.cluster, name)
        return [option(pod["spec"], "--block-size") or "16" for pod in pods if is_ready(pod)]

    @property
    def work(self) -> list[bool]:
        """Return whether a pair works, at each moment."""
        return [bool({*prefill} & {*decode}) for prefill, decode, _ in self.found]


def _is_engine(pod: Manifest) -> bool:
    return any(item["name"] == "engine" for item in pod["spec"]["containers"])


DAILY = 4


@pytest.mark.parametrize(
    "seed", [*range(DAILY), *(pytest.param(s, marks=pytest.mark.whole) for s in range(DAILY, 24))]
)
def test_a_rollout_loses_the_pair_only_between_the_roles_and_only_if_pages_change(
    seed: int,
) -> None:
    draw = random.Random(f"pairs {seed}")
    prefill, decode, spare = draw.randint(1, 3), draw.randint(1, 3), draw.choice((1, 1, 2))
    changes = (_PAGES, _NO_PAGES)[seed % 2]
    pairs = Pairs(
        nodes=1,
        devices=prefill + decode + spare,
        **_GPU,
        replicas=decode,
        disaggregation={"prefill": {"replicas": prefill}},
    )
    try:
        pairs.live(_LOADED_SECONDS)
        moments = Moments(pairs)
        pairs.ask(**changes)
        pairs.live(_ROLLED_SECONDS)
        assert pairs.told("Ready")["status"] == "True"
    finally:
        pairs.operator.close()
    for there in moments.found:
        assert len(there[0]) >= prefill, "each pod is replaced beside the old one"
        assert len(there[1]) >= decode
        assert there[2] <= prefill + decode + 1, "one spare device at a time"
    lost = [number for number, works in enumerate(moments.work) if not works]
    if changes is _NO_PAGES:
        assert not lost
        return
    assert lost, "prefill pods are all new before the first decode pod is"
    assert lost == list(range(lost[0], lost[-1] + 1)), "it is lost once"
    for number in lost:
        assert ({*moments.found[number][0]}, {*moments.found[number][1]}) == ({"32"}, {"16"})


def test_prefill_pods_go_back_by_the_spare_device_that_failed_decode_pods_have_left() -> None:
    spoilt = {"spec": {"containers": [{"name": "engine", "image": "registry.test/atom:bad"}]}}
    roles = {"prefill": {"template": {"metadata": {}}}, "decode": {"template": spoilt}}
    pairs = Pairs(nodes=1, devices=3, **_GPU, disaggregation={"prefill": {}})
    try:
        pairs.live(_LOADED_SECONDS)
        good = pairs.images("chat")
        moments = Moments(pairs)
        new = {"engine": {"image": "registry.test/atom:2"}}
        pairs.ask(**new, disaggregation=roles, rollout={"progressDeadlineSeconds": 600})
        pairs.live(3000)
        assert pairs.images("chat") == pairs.images("chat-prefill") == good
    finally:
        pairs.operator.close()
    assert all(prefill and decode for prefill, decode, _ in moments.found)


def test_a_canary_keeps_a_pair_while_the_pages_of_the_others_change() -> None:
    """It takes the two spare devices without which no order keeps a single pair, and a third by
    which the others are replaced."""
    gateway = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
    pairs = Pairs(nodes=1, devices=5, **_GPU, gateway=gateway, disaggregation={"prefill": {}})
    pairs.cluster.clients.append(GatewayController(pairs.cluster.state).sync)
    try:
        pairs.live(_LOADED_SECONDS)
        moments = Moments(pairs)
        canary = {"change": _PAGES, "weight": 100, "replicas": 1}
        pairs.ask(canary=canary)
        pairs.live(900)
        pairs.ask(canary={**canary, "decision": "Promote"})
        pairs.live(_ROLLED_SECONDS)
        assert {*moments.found[-1][0], *moments.found[-1][1]} == {"32"}
    finally:
        pairs.operator.close()
    assert not all(moments.work), "the others lose theirs"
    assert all(map(any, zip(moments.work, moments.canaries, strict=True)))
