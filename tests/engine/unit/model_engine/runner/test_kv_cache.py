"""The KV cache's memory: reserved on the CPU, taken as it is used; shared by groups of layers."""

from __future__ import annotations

import psutil
import torch

from atom.model_engine.runner import kv_cache
from atom.model_ops.attention import Attention
from atom.model_ops.backends import resolve_ops
from atom.model_ops.rotary_embedding import RopeConfig, RotaryEmbedding
from atom.model_ops.values import AttentionShape
from tests.engine.ops.inputs import FLOAT32

CPU = torch.device("cpu")


def layers(count: int) -> list[Attention]:
    shape = AttentionShape(num_heads=4, num_kv_heads=4, head_dim=64, scale=1.0)
    rotary = RotaryEmbedding(RopeConfig(64, 64, 10_000.0), 16)
    ops = resolve_ops("cpu", FLOAT32).ops
    return [Attention(shape, rotary, norms=None, ops=ops) for _ in range(count)]


def test_memory_is_taken_as_blocks_are_used() -> None:
    (layer,) = layers(1)
    before = psutil.Process().memory_info().rss
    kv_cache.allocate([layer], [(0,)], 2**15, 16, kv_cache.Place(torch.float32, CPU))
    k = layer._cache.k
    assert k.nbytes == 2**29
    assert psutil.Process().memory_info().rss - before < 2**27, "half a gibibyte each was reserved"
    assert not k[123].any()


def test_layers_at_the_same_place_of_their_groups_share_tensors() -> None:
    five = layers(5)
    groups = [(0, 2), (1, 4), (3,)]
    kv_cache.allocate(five, groups, 8, 16, kv_cache.Place(torch.bfloat16, CPU))
    addresses = [layer._cache.k.data_ptr() for layer in five]
    assert addresses[0] == addresses[1] == addresses[3]
    assert addresses[2] == addresses[4] != addresses[0]
    assert [layer._group for layer in five] == [0, 1, 0, 2, 1]
    assert five[0]._cache.k.data_ptr() != five[0]._cache.v.data_ptr()
