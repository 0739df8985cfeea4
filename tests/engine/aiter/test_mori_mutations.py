"""The double of MORI notices every mistake of a list that the adapter could make in its calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.model_ops.expert_parallel.mori_dispatch import MoriDispatch, MoriShape
from atom.model_ops.routing import Routed
from tests.support.aiter.aiter_mutations import (
    Change,
    constant,
    drop,
    put,
    rename,
    shifted,
    strided,
    swap,
)
from tests.support.fake_mori import GENERATIONS, fake_mori
from tests.support.ranks.thread_links import ThreadLinks, ThreadWorld

RANKS, HIDDEN, TOP_K, SLOTS, MOST = 2, 8, 3, 4, 6
SHAPE = MoriShape(MOST, HIDDEN, TOP_K, SLOTS, torch.float32, ranks_per_node=1)
NOTICED = (AssertionError, TypeError, RuntimeError, ValueError, IndexError)

# What is called, what is wrong of it, and the change of its arguments.
MISTAKES: list[tuple[str, str, Change]] = [
    ("config", "no type of data", drop("data_type")),
    ("config", "rank and world swapped", swap("rank", "world_size")),
    ("config", "experts of all ranks", constant("num_experts_per_rank", RANKS * SLOTS)),
    ("config", "experts of a rank and of a token swapped",
     swap("num_experts_per_rank", "num_experts_per_token")),
    ("config", "a narrower hidden state", constant("hidden_dim", HIDDEN // 2)),
    ("config", "room for fewer tokens", constant("max_num_inp_token_per_rank", 2)),
    ("config", "warps by another name", rename("warp_num_per_block", "warp_per_block")),
    ("config", "one node for two", constant("gpu_per_node", RANKS)),
    ("config", "devices of a node that are no power of two", constant("gpu_per_node", 3)),
    ("config", "blocks for other nodes that 8 does not divide", constant("rdma_block_num", 20)),
    ("config", "no blocks for other nodes", constant("rdma_block_num", 0)),
    ("config", "no blocks for the own node", constant("rdma_block_num", 80)),
    ("config", "a kernel of one node", drop("kernel_type")),
    ("dispatch", "wide ids", put("indices", torch.Tensor.long)),
    ("dispatch", "weights for ids", swap("weights", "indices")),
    ("dispatch", "ids of padding", put("indices", lambda ids: ids.where(ids != ids[0, 0], -1))),
    ("dispatch", "ids from one", put("indices", lambda ids: ids + 1)),
    ("dispatch", "ids of others", put("indices", shifted)),
    ("dispatch", "weights of others", put("weights", shifted)),
    ("dispatch", "narrow weights", put("weights", torch.Tensor.half)),
    ("dispatch", "one expert a token", put("indices", lambda ids: ids[:, :1].contiguous())),
    ("dispatch", "strides", put("input", strided)),
    ("dispatch", "narrow tokens", put("input", torch.Tensor.half)),
    ("dispatch", "no tokens", put("input", lambda x: x[:0])),
    ("dispatch", "ids by another name", rename("indices", "topk_ids")),
    ("combine", "what has come for what was sent", constant("indices", torch.zeros(1, TOP_K))),
    ("combine", "results of others", put("input", shifted)),
    ("combine", "no results", put("input", lambda x: x[:0])),
    ("combine", "strides", put("input", strided)),
    ("combine", "no routing", drop("indices")),
]  # fmt: skip


def _mutated(library: SimpleNamespace, called: str, change: Change) -> SimpleNamespace:
    def through(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **given: function(**change(given))

    def op(**given: Any) -> Any:
        made = library.ops.EpDispatchCombineOp(**given)
        if called != "config":
            setattr(made, called, through(getattr(made, called)))
        return made

    config = library.ops.EpDispatchCombineConfig
    return SimpleNamespace(
        EpDispatchCombineConfig=through(config) if called == "config" else config,
        EpDispatchCombineOp=op,
        EpDispatchCombineKernelType=library.ops.EpDispatchCombineKernelType,
    )


def _exchange(change: Change, called: str, generation: str) -> None:
    def one(links: ThreadLinks) -> None:
        library = fake_mori(generation, links)
        ops = _mutated(library, called, change)
        exchange = MoriDispatch(ops, library.shmem, links, SHAPE)
        draw = torch.Generator().manual_seed(links.rank)
        x = torch.randn(5, HIDDEN, generator=draw)
        experts = RANKS * SLOTS
        ids = torch.stack([torch.randperm(experts, generator=draw)[:TOP_K] for _ in range(5)])
        routed = Routed(ids.int(), torch.rand(5, TOP_K, generator=draw))
        arrived = exchange.dispatch(x, routed, SLOTS)
        own = arrived.routed
        # Expert number e of all gives (e + 1) · x.
        shares = (own.ids + links.rank * SLOTS + 1) * own.weights
        total = shares.where((own.ids >= 0) & (own.ids < SLOTS), 0.0).sum(1, keepdim=True)
        combined = exchange.combine(arrived, torch.where(total != 0, arrived.x * total, 0.0))
        expected = x * ((ids + 1) * routed.weights).sum(1, keepdim=True)
        torch.testing.assert_close(combined, expected)

    ThreadWorld(RANKS).run(one)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_adapter_makes_none(generation: str) -> None:
    _exchange(dict, "dispatch", generation)


@pytest.mark.parametrize(
    ("called", "name", "change"), MISTAKES, ids=[f"{each[0]}: {each[1]}" for each in MISTAKES]
)
def test_a_mistake_is_noticed(called: str, name: str, change: Change) -> None:
    with pytest.raises(NOTICED):
        _exchange(change, called, GENERATIONS[-1])
