"""Low-rank products are added to a base's, adapter by adapter (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from atom.model_ops.values import LoraWeight
from atom.utils.forward_context import LoraTokens

_GROUPS = "lora groups"


def add_lora(
    product: Callable[[], torch.Tensor], x: torch.Tensor, w: LoraWeight, tokens: LoraTokens
) -> torch.Tensor:
    """See `Ops.add_lora`."""
    y = product()
    for slot, own in _groups(tokens):
        shrunk = x[own].float() @ w.a[slot].float().T  # [n, parts · R]
        added = [
            part @ b.float().T
            for part, b in zip(
                shrunk.split(w.rank, dim=1), w.b[slot].split(list(w.rows)), strict=True
            )
        ]
        y[own] = (y[own].float() + torch.cat(added, dim=1)).to(y.dtype)
    return y


def _groups(tokens: LoraTokens) -> list[tuple[int, torch.Tensor]]:
    """Return the tokens [n] int64 of each adapter that has any, computed once a step."""
    found: list[tuple[int, torch.Tensor]] | None = tokens.per_step.get(_GROUPS)
    if found is None:
        slots = tokens.slots.unique().tolist()
        found = [(slot, (tokens.slots == slot).nonzero()[:, 0]) for slot in slots if slot >= 0]
        tokens.per_step[_GROUPS] = found
    return found
