"""Paged attention of a step: decode rows by one kernel, ragged rows by another.

Supported: head sizes that are powers of two from 16 to 256, any number of query heads per KV head,
any block size that is a power of two.
"""

from __future__ import annotations

import torch

from atom.errors import ConfigError
from atom.model_ops.backends.interface import AttentionShape
from atom.model_ops.backends.triton_ops.decode_attention import decode_attention
from atom.model_ops.backends.triton_ops.prefill_attention import prefill_attention
from atom.utils.forward_context import AttentionMetaData

_HEAD_DIMS = (16, 32, 64, 128, 256)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    shape: AttentionShape,
    metadata: AttentionMetaData,
) -> torch.Tensor:
    _check(shape, k_cache.shape[1])
    out = torch.empty_like(q)
    decodes = metadata.num_decodes
    if decodes:
        decode_attention(
            q[:decodes],
            k_cache,
            v_cache,
            shape,
            metadata.block_tables,
            metadata.context_lens,
            metadata.max_context_len,
            out[:decodes],
        )
    if decodes < metadata.context_lens.shape[0]:
        prefill_attention(
            q,
            k_cache,
            v_cache,
            shape,
            metadata.block_tables,
            metadata.context_lens,
            metadata.query_starts,
            decodes,
            out,
        )
    return out.flatten(1)


def _check(shape: AttentionShape, block_size: int) -> None:
    if shape.head_dim not in _HEAD_DIMS:
        raise ConfigError(
            f"the triton backend computes attention for head sizes "
            f"{', '.join(map(str, _HEAD_DIMS))}, not {shape.head_dim}; use "
            f"--op-backend paged_attention=torch_ref"
        )
    if block_size & (block_size - 1):
        raise ConfigError(
            f"the triton backend needs a block size that is a power of two, not {block_size}; "
            f"set --block-size 16"
        )
