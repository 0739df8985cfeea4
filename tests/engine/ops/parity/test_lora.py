"""What adapters add to a product is what merging each of them into the matrix would."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from atom.model_ops.values import LoraWeight
from atom.utils.forward_context import LoraTokens

ROWS, INPUTS, RANK, SLOTS = (24, 8, 8), 48, 5, 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_token_has_its_own_adapter(dtype: torch.dtype, reference: Backend) -> None:
    w = LoraWeight(
        torch.randn(SLOTS, len(ROWS) * RANK, INPUTS, dtype=dtype),
        torch.randn(SLOTS, sum(ROWS), RANK, dtype=dtype),
        ROWS,
    )
    slots = torch.tensor([2, -1, 0, 0, 2, -1, 1], dtype=torch.int32)
    x = torch.randn(len(slots), INPUTS, dtype=dtype)
    y = torch.randn(len(slots), sum(ROWS), dtype=dtype)

    wanted = y.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            merged = [
                b.double() @ a.double()
                for a, b in zip(w.a[slot].split(RANK), w.b[slot].split(ROWS), strict=True)
            ]
            wanted[token] = (y[token].double() + torch.cat(merged) @ x[token].double()).to(dtype)
    told = reference.operations["add_lora"](y.clone(), x, w, LoraTokens(slots))
    torch.testing.assert_close(told, wanted)
    assert torch.equal(told[slots < 0], y[slots < 0])
