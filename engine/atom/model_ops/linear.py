"""Linear layers and how checkpoint tensors find their place in them.

A parameter carries `weight_loader(param, loaded, shard)`: the loader calls it with each checkpoint
tensor, and the layer knows which rows of a merged matrix that tensor fills. This version runs one
device per engine, so every layer holds its whole matrix.
"""

from __future__ import annotations

import torch
from torch import nn

from atom.model_ops.backends.interface import AttentionShape, Ops
from atom.model_ops.layernorm import RMSNorm


class ShapeMismatchError(ValueError):
    """A checkpoint tensor does not have the shape that the model's configuration calls for."""


def copy_weight(target: torch.Tensor, loaded: torch.Tensor) -> None:
    """Copy with a conversion of dtype; raises `ShapeMismatchError` rather than broadcast."""
    if target.shape != loaded.shape:
        raise ShapeMismatchError(
            f"has shape {list(loaded.shape)}, the configuration calls for {list(target.shape)}"
        )
    target.copy_(loaded)


class LinearBase(nn.Module):
    """y = x Wᵀ (+ b) with W [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        for parameter in self.parameters():
            parameter.weight_loader = self.load  # type: ignore[attr-defined]

    def load(self, parameter: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        copy_weight(parameter.data, loaded)

    def prepare(self) -> None:
        """Once, when the weights are loaded."""
        self.weight.data = self._ops.prepare_linear(self.weight.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [T, in] → [T, out]
        return self._ops.linear(x, self.weight, self.bias)

    def after_norm(
        self, norm: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(self(norm(x + residual)), x + residual); a missing residual means x begins it."""
        return self._ops.norm_linear(x, residual, norm.weight, norm.eps, self.weight, self.bias)


class RowParallelLinear(LinearBase):
    """A projection back to the residual stream: the input is what tensor parallelism splits."""

    def into(
        self, residual: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the next norm takes for residual + self(x): (self(x), perhaps in parts, residual),
        or (their sum, None). See Ops.linear_addend."""
        return self._ops.linear_addend(x, self.weight, self.bias, residual)


class MergedColumnParallelLinear(LinearBase):
    """Several projections of one input in one matrix; `shards`: checkpoint name → output size."""

    def __init__(self, in_features: int, shards: dict[str, int], *, bias: bool, ops: Ops) -> None:
        super().__init__(in_features, sum(shards.values()), bias=bias, ops=ops)
        self._offsets: dict[str, tuple[int, int]] = {}
        start = 0
        for name, size in shards.items():
            self._offsets[name] = (start, size)
            start += size

    def load(self, parameter: nn.Parameter, loaded: torch.Tensor, shard: str | None) -> None:
        assert shard is not None, "a merged matrix is loaded by shards"
        start, size = self._offsets[shard]
        copy_weight(parameter.data[start : start + size], loaded)


class GatedLinear(MergedColumnParallelLinear):
    """silu(gate) · up of a gated MLP, in one matrix: gate's rows, then up's."""

    def __init__(self, hidden_size: int, inner_size: int, *, bias: bool, ops: Ops) -> None:
        shards = {"gate_proj": inner_size, "up_proj": inner_size}
        super().__init__(hidden_size, shards, bias=bias, ops=ops)

    def after_norm(
        self, norm: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._ops.norm_gated_linear(
            x, residual, norm.weight, norm.eps, self.weight, self.bias
        )


class QKVParallelLinear(MergedColumnParallelLinear):
    """Queries, keys and values in one matrix, in this order of rows. last: of the last layer, which
    computes no more than keys and values of most tokens."""

    def __init__(
        self, hidden_size: int, shape: AttentionShape, *, bias: bool, last: bool, ops: Ops
    ) -> None:
        kv_size = shape.num_kv_heads * shape.head_dim
        shards = {
            "q_proj": shape.num_heads * shape.head_dim,
            "k_proj": kv_size,
            "v_proj": kv_size,
        }
        super().__init__(hidden_size, shards, bias=bias, ops=ops)
        self._query_rows = shards["q_proj"]
        self._last = last
        self._kv_weight: torch.Tensor | None = None

    def prepare(self) -> None:
        rows = self.weight.data[self._query_rows :]
        super().prepare()
        if self._last:
            self._kv_weight = self._ops.prepare_linear(rows)

    def keys_values(self, x: torch.Tensor) -> torch.Tensor:  # [T, in] → [T, 2·Hkv·D]
        assert self._kv_weight is not None, "prepared, and of the last layer"
        bias = None if self.bias is None else self.bias[self._query_rows :]
        return self._ops.linear(x, self._kv_weight, bias)
