"""Norm, rotation and cache store in one: the same queries, and the same cache everywhere."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.self_check.agreement import SLACK
from atom.model_ops.values import AttentionShape, LayerCache, NormWeight, Rotary
from tests.engine.ops.inputs import assert_rows_agree

gpu = pytest.mark.gpu
BLOCKS, BLOCK_SIZE = 40, 16


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    ("heads", "head_dim", "tokens"),
    [
        ((4, 2), 32, 3),
        ((3, 1), 64, 1),
        ((7, 1), 16, 20),
        ((4, 4), 16, 70),
        ((4, 2), 80, 9),
        ((2, 1), 8, 5),
        pytest.param((16, 8), 128, 9, marks=gpu),
        pytest.param((32, 8), 128, 300, marks=gpu),
        pytest.param((8, 2), 256, 65, marks=gpu),
    ],
)
def test_queries_and_cache_equal_the_reference(
    backend: Backend, reference: Backend, device: torch.device, heads: tuple[int, int],
    head_dim: int, tokens: int, norm: bool, dtype: torch.dtype, takes_padding: bool,
) -> None:  # fmt: skip
    shape = AttentionShape(heads[0], heads[1], head_dim, 1.0)
    qkv = torch.randn(tokens, (heads[0] + 2 * heads[1]) * head_dim, device=device).to(dtype)
    norms = [
        NormWeight(torch.randn(head_dim, device=device).to(dtype), 1e-6) if norm else None
        for _ in range(2)
    ]
    angles = torch.rand(64, head_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, 64, (tokens,), device=device)
    slots = torch.randperm(BLOCKS * BLOCK_SIZE, device=device)[:tokens]
    padding = (torch.arange(tokens, device=device) % 4 == 3) & takes_padding
    rotary = Rotary(cos_sin, positions, *norms)

    def empty_cache() -> LayerCache:
        size = (BLOCKS, BLOCK_SIZE, heads[1], head_dim)
        return LayerCache(*(torch.full(size, 7.0, dtype=dtype, device=device) for _ in range(2)))

    expected, cache = empty_cache(), empty_cache()
    rows = ~padding
    expected_q = reference.operations["qk_norm_rope_store"](
        qkv.clone(), shape, rotary, expected, slots
    )
    # The reference knows no padding: put back what its padding rows overwrote.
    for tensor in (expected.k, expected.v):
        tensor.flatten(0, 1)[slots[padding]] = 7.0
    q = backend.operations["qk_norm_rope_store"](
        qkv.clone(), shape, rotary, cache, torch.where(rows, slots, -1)
    )
    # The reference rotates in the dtype, with cosines rounded to it: two roundings more.
    assert_rows_agree(q, expected_q, dtype, slack=SLACK["qk_norm_rope_store"])
    assert_rows_agree(cache.k, expected.k, dtype, slack=SLACK["qk_norm_rope_store"])
    assert torch.equal(cache.v, expected.v)
