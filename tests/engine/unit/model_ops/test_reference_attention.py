"""The reference attention looks at nothing but the row's own tokens."""

from __future__ import annotations

import torch

from atom.model_ops.backends.torch_ref.attention import paged_attention
from atom.model_ops.values import AttentionShape, LayerCache
from atom.utils.forward_context import AttentionMetaData

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, scale=8**-0.5)
BLOCK = 16
LENGTHS = (5, 19)


def decode(k_cache: torch.Tensor, v_cache: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    metadata = AttentionMetaData(
        query_starts=torch.arange(3, dtype=torch.int32),
        context_lens=torch.tensor(LENGTHS, dtype=torch.int32),
        block_tables=torch.tensor([[2, 0], [1, 3]], dtype=torch.int32),
        slot_mapping=torch.zeros(2, dtype=torch.int64),
        num_decodes=2,
        max_query_len=1,
        max_context_len=max(LENGTHS),
    )
    return paged_attention(q, SHAPE, LayerCache(k_cache, v_cache), metadata)


def test_what_lies_past_a_rows_end_does_not_matter_even_if_it_is_not_a_number() -> None:
    torch.manual_seed(0)
    k_cache, v_cache = torch.randn(2, 4, BLOCK, SHAPE.num_kv_heads, SHAPE.head_dim)
    q = torch.randn(2, SHAPE.num_heads, SHAPE.head_dim)
    expected = decode(k_cache.clone(), v_cache.clone(), q)
    for cache in (k_cache, v_cache):
        cache[2, LENGTHS[0] :] = torch.nan
        cache[0] = torch.nan
        cache[3, LENGTHS[1] - BLOCK :] = torch.nan
    assert torch.equal(decode(k_cache, v_cache, q), expected)
