"""Attention of queries over a piece of keys by the library, with the log-sum-exps for merging
pieces.

`scaled_dot_product_attention` does not return the log-sum-exps of scores; the operations that it
chooses among do. So it is asked once for each kind of heads which operation it would choose, and if
that is one of those below, the operation is called by name. Both accept fewer heads of keys than of
queries. The CPU's operation serves to test the other code without a card. If the answer is None,
rows are attended to in another way: other dtypes and head sizes, cards for which the library
prefers another operation, ROCm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.attention import SDPBackend

from atom.model_ops.values import AttentionShape

# q [Q, Hq, D], k, v [K, Hkv, D], is_causal (of equal lengths), scale → the result, like q, and the
# natural logarithm [Hq, Q] float32 of the sum of exponentials of each query's scores.
PieceAttention = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]
]

_ASKED_TOKENS = 2048  # as many as the shortest piece has


@dataclass(frozen=True, slots=True)
class Heads:
    """The properties that decide the library's choice of an operation."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


def piece_attention(q: torch.Tensor, shape: AttentionShape) -> PieceAttention | None:
    """Return the operation that attends to pieces for queries like q; None if no operation returns
    log-sum-exps."""
    return _chosen(Heads(shape.num_heads, shape.num_kv_heads, shape.head_dim, q.dtype, q.device))


@cache
def _chosen(heads: Heads) -> PieceAttention | None:
    def empty(count: int) -> torch.Tensor:
        size = (1, _ASKED_TOKENS, count, heads.head_dim)
        return torch.empty(size, dtype=heads.dtype, device=heads.device).transpose(1, 2)

    if heads.device.type == "cuda" and torch.version.hip is not None:
        return None
    query, key = empty(heads.num_heads), empty(heads.num_kv_heads)
    choice = torch._fused_sdp_choice(query, key, key, is_causal=True, enable_gqa=True)
    operations = {
        ("cuda", SDPBackend.CUDNN_ATTENTION.value): _attend_by_cudnn,
        ("cpu", SDPBackend.FLASH_ATTENTION.value): _attend_on_cpu,
    }
    return operations.get((heads.device.type, choice))


def _attend_by_cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    result, sums = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *map(_batched, (q, k, v)), None, True, 0.0, is_causal, False, scale=scale
    )[:2]
    return _unbatched(result, sums)


def _attend_on_cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _unbatched(
        *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *map(_batched, (q, k, v)), 0.0, is_causal, scale=scale
        )
    )


def _batched(heads: torch.Tensor) -> torch.Tensor:
    return heads.unsqueeze(0).transpose(1, 2)


def _unbatched(result: torch.Tensor, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop the batch dimension; sums: [1, Hq, Q] or [1, Hq, Q, 1]. cuDNN's results have the final
    order, so they are not copied."""
    tokens_first = result.transpose(1, 2).squeeze(0).contiguous()
    return tokens_first, sums.reshape(result.shape[1:3]).contiguous()
