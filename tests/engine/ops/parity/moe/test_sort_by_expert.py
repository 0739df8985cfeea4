"""Pairs in order stand by expert, and in their own order within one; other ranks' stand nowhere."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.triton_ops.moe.sort_by_expert import order_by_expert


@pytest.mark.parametrize("tokens", [1, 340, 2731, 5500])
def test_order(device: torch.device, tokens: int) -> None:
    """Of one part of pairs, of a part's last and of several."""
    experts = 5
    ids = torch.randint(-1, experts + 2, (tokens, 3), dtype=torch.int32)
    order = order_by_expert(ids.to(device), experts)
    own = [(ids.flatten() == expert).nonzero().flatten() for expert in range(experts)]
    assert order.counts.tolist() == [len(pairs) for pairs in own]
    assert order.pairs[: order.counts.sum()].tolist() == torch.cat(own).tolist()
