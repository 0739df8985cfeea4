"""LoraOps: the contract of the operations that only steps with adapters ask for.

Part of `Ops` (interface.py), whose rules hold here too. P: pairs of a token and one of its experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from atom.model_ops.values import Gating, LinearWeight, LoraWeight, NormWeight, Stream
from atom.utils.forward_context import LoraTokens


class LoraOps(Protocol):
    def add_lora(
        self,
        product: Callable[[], torch.Tensor],
        x: torch.Tensor,
        w: LoraWeight,
        tokens: LoraTokens,
    ) -> torch.Tensor:
        """Add to y [T, out], which `product` computes of x [T, in], what each token's adapter makes
        of x: part by part b · (a · x), whose sum is rounded once. y of tokens without one stays as
        it is. May shrink x beside the product, and overwrite y."""

    def expert_products(self, x: torch.Tensor, w: LinearWeight, ids: torch.Tensor) -> torch.Tensor:
        """Multiply each x [P, in] with the matrix of a stack that its id [P] int32 names → [P,
        out], biases added. Where it names none, what stands there is finite and of no meaning. May
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
        """Compute `norm`, `linear_lora`, and `act_and_mul` where an activation is given: ([T, out]
        or [T, out / 2], the settled stream)."""
