"""LoraOps: the contract of the operations that only steps with adapters ask for.

Part of `Ops` (interface.py), whose rules hold here too. P: pairs of a token and one of its experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.values import LinearWeight, LoraWeight, NormWeight, Stream
from atom.utils.forward_context import LoraTokens


class LoraOps(Protocol):
    def add_lora(
        self,
        product: Callable[[], torch.Tensor],
        x: torch.Tensor,
        w: LoraWeight,
        tokens: LoraTokens,
    ) -> torch.Tensor:
        """Add to y [T, out], which `product` computes from x [T, in], the contribution of each
        token's adapter: part by part b · (a · x), whose sum is rounded once. y of tokens without an
        adapter does not change. May shrink x concurrently with the product, and overwrite y."""

    def expert_products(self, x: torch.Tensor, w: LinearWeight, ids: torch.Tensor) -> torch.Tensor:
        """Multiply each x [P, in] with the matrix of a stack that its id [P] int32 names → [P,
        out], biases added. The result for an id outside the stack is finite and arbitrary. May
        round x as `linear` does."""

    def linear_lora(self, x: torch.Tensor, w: LinearWeight, tokens: LoraTokens) -> torch.Tensor:
        """Compute `linear` with what `add_lora` adds of w's low-rank parts: [T, in] → [T, out]."""

    def norm_linear_lora(
        self,
        stream: Stream,
        norm: NormWeight,
        w: LinearWeight,
        tokens: LoraTokens,
        activation: Gating | None,
    ) -> tuple[torch.Tensor, Stream]:
        """Compute `norm`, `linear_lora`, and, if an activation is given, `act_and_mul`: ([T, out]
        or [T, out / 2], the settled stream)."""
