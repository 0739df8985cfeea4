"""The KV cache's memory: reserved on the CPU, taken as it is used; shared by groups of layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from atom.model_engine.runner import kv_cache
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.slots.own_blocks import OwnBlocks
from atom.model_engine.runner.warm_up import decode_batch
from atom.model_ops.attention import Attention
from atom.model_ops.backends import resolve_ops
from atom.model_ops.rotary_embedding import RopeConfig, RotaryEmbedding
from atom.model_ops.values import AttentionShape
from atom.sizing import CacheGroup
from atom.sizing.mask_rule import CAUSAL
from tests.engine.ops.inputs import FLOAT32

CPU = torch.device("cpu")


def layers(count: int, heads: int = 4, head_dim: int = 64) -> list[Attention]:
    shape = AttentionShape(num_heads=heads, num_kv_heads=heads, head_dim=head_dim, scale=1.0)
    rotary = RotaryEmbedding(RopeConfig(head_dim, head_dim, 10_000.0), 16)
    ops = resolve_ops("cpu", FLOAT32).ops
    return [Attention(shape, rotary, norms=None, ops=ops) for _ in range(count)]


def test_memory_is_taken_as_blocks_are_used() -> None:
    (layer,) = layers(1)
    before = psutil.Process().memory_info().rss
    kv_cache.allocate([layer], [CacheGroup((0,))], 2**15, 16, kv_cache.Place(torch.float32, CPU))
    k = layer._cache.k
    assert k.nbytes == 2**29
    assert psutil.Process().memory_info().rss - before < 2**27, "half a gibibyte each was reserved"
    assert not k[123].any()


GIB = 1 << 30


@dataclass(frozen=True)
class Card:
    """A GPU of 80 GiB of which so much is used."""

    used: int
    is_gpu: bool = True
    torch_device: torch.device = CPU

    def used_memory_bytes(self) -> int:
        return self.used

    def total_memory_bytes(self) -> int:
        return 80 * GIB


@pytest.mark.parametrize(
    ("others", "share", "counted"),
    [
        (0, 0.9, 3),  # the runtime's own
        (7, 0.9, 3),  # others' lies beside this engine's share
        (30, 0.9, 3 + 22),  # and some of it not
        (30, 0.4, 3),  # another model has the rest of the device
    ],
)
def test_memory_of_others_counts_as_far_as_it_is_of_this_engines_share(
    others: int, share: float, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 16 * GIB)
    started: Any = Card((others + 1) * GIB)
    loaded: Any = Card((others + 16 + 3) * GIB)
    assert kv_cache.others_bytes(started) == others * GIB
    found = kv_cache.overhead_bytes(loaded, 16 * GIB, others * GIB, share)
    assert abs(found - counted * GIB) < 8


def test_memory_that_others_have_given_back_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that ends while this one begins."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 16 * GIB)
    loaded: Any = Card((16 + 3) * GIB)
    assert GIB <= kv_cache.overhead_bytes(loaded, 16 * GIB, 70 * GIB, 0.9) <= 3 * GIB


def test_layers_at_the_same_place_of_their_groups_share_tensors() -> None:
    five = layers(5)
    groups = [CacheGroup(own) for own in ((0, 2), (1, 4), (3,))]
    kv_cache.allocate(five, groups, 8, 16, kv_cache.Place(torch.bfloat16, CPU))
    addresses = [layer._cache.k.data_ptr() for layer in five]
    assert addresses[0] == addresses[1] == addresses[3]
    assert addresses[2] == addresses[4] != addresses[0]
    assert [layer._group for layer in five] == [0, 1, 0, 2, 1]
    assert five[0]._cache.k.data_ptr() != five[0]._cache.v.data_ptr()


def test_no_block_of_any_group_overlaps_one_of_another_where_layers_are_of_unlike_sizes() -> None:
    large, small = layers(3), [*layers(4, heads=2), *layers(1, heads=1, head_dim=128)]
    every = [*large, *small]
    groups = [CacheGroup((0, 1, 2)), CacheGroup((3, 5, 4, 6, 7), CAUSAL, 2)]
    kv_cache.allocate(every, groups, 8, 16, kv_cache.Place(torch.bfloat16, CPU))
    numbers = OwnBlocks.of(groups, 8).factors
    for block in range(8):  # of which the groups have every second
        group = groups[block % 2]
        for index in group.layers:
            cache = every[index]._cache
            for number, tensor in enumerate((cache.k, cache.v)):
                own = tensor[block * numbers[block % 2]]
                assert not own.any(), "another layer or block was there"
                own.fill_(1 + index + 10 * number)
    for block in range(8):
        for index in groups[block % 2].layers:
            cache = every[index]._cache
            for number, tensor in enumerate((cache.k, cache.v)):
                own = tensor[block * numbers[block % 2]]
                assert (own == 1 + index + 10 * number).all()


def test_blocks_are_renumbered_for_rows_that_enter_and_for_those_appended() -> None:
    appends = np.array([(0, 1, 3), (2, 9, 4), (1, 8, 5)], dtype=np.int32)
    batch = replace(decode_batch([2], CacheShape(64, 16, 2)), block_appends=appends)
    own = OwnBlocks.of([CacheGroup(), CacheGroup((), CAUSAL, 3)], columns=8).renumbered(batch)
    assert own.block_appends.tolist() == [[0, 1, 3], [2, 9, 12], [1, 8, 15]]
    (before,), (after,) = batch.new_rows, own.new_rows
    assert after.block_ids == (before.block_ids[0], [3 * block for block in before.block_ids[1]])
    assert batch.block_appends is appends
    assert appends[1, 2] == 4
