"""Whether a new pod fits once old ones have gone is told right also where these are of several
sizes: as it comes out for every choice of those that go."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from atom_operator.domain import Amount, NodeSupply, Supply
from atom_operator.plan.quota import QuotaRefusal
from atom_operator.plan.room import takes_one

RESOURCES = ("memory", "cpu")
DRAWS = 200


def draw_amounts(draw: random.Random) -> dict[str, int]:
    return {name: draw.randint(0, 4) for name in RESOURCES}


@pytest.mark.parametrize("pods", [1, 2, 3, 4])
def test_a_node_takes_a_pod_once_so_many_have_left_it_whichever_did(pods: int) -> None:
    draw, told = random.Random(pods), set()
    for _ in range(DRAWS):
        needed, free = draw_amounts(draw), draw_amounts(draw)
        old = tuple(draw_amounts(draw) for _ in range(pods))
        held = {name: sum(pod[name] for pod in old) for name in RESOURCES}
        amounts = {
            name: Amount(free[name] + held[name], held[name], held[name]) for name in RESOURCES
        }
        node = NodeSupply("a", amounts, None, old)
        supply = Supply(None, needed, (node,))
        for gone in range(pods + 1):
            fits = all(
                free[name] + sum(pod[name] for pod in chosen) >= needed[name]
                for chosen in combinations(old, gone)
                for name in RESOURCES
            )
            assert takes_one(node, supply, gone) == fits
            told.add(fits)
    assert told == {True, False}


@pytest.mark.parametrize("pods", [1, 2, 3, 4])
def test_a_quota_has_room_once_so_many_have_gone_whichever_did(pods: int) -> None:
    draw, told = random.Random(pods), set()
    for _ in range(DRAWS):
        each = draw_amounts(draw)
        old = [draw_amounts(draw) for _ in range(pods)]
        used = {name: sum(pod[name] for pod in old) for name in RESOURCES}
        limited = {name: draw.randint(0, used[name] + 4) for name in RESOURCES}
        refusal = QuotaRefusal("team", each, used, limited, old)
        for gone in range(pods + 1):
            fits = all(
                used[name] - sum(pod[name] for pod in chosen) + 2 * each[name] <= limited[name]
                for chosen in combinations(old, gone)
                for name in RESOURCES
            )
            assert refusal.has_room_after(gone, 2) == fits
            told.add(fits)
    assert told == {True, False}
