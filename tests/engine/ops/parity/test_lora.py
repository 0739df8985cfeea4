"""What adapters add to a product is what merging each of them into the matrix would."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from atom.model_ops.values import LoraWeight
from atom.utils.forward_context import LoraTokens

SLOTS = 3
# Rows of a matrix' projections, inputs, rank: odd sizes; projections that meet within a tile; more
# inputs than a program takes of few tokens, and more rank than it takes at once.
SHAPES = {
    "q, k and v": ((24, 8, 8), 48, 5),
    "one of many inputs": ((40,), 1100, 16),
    "gate and up of a high rank": ((130, 130), 64, 70),
}
FEW = (2, -1, 0, 0, 2, -1, 1)
MANY = (*[2] * 70, *[-1] * 10, *FEW, *[0] * 20)  # prompts of several adapters behind decodes


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("tokens", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_token_has_its_own_adapter(
    dtype: torch.dtype,
    shape: str,
    tokens: tuple[int, ...],
    backend: Backend,
    device: torch.device,
) -> None:
    rows, inputs, rank = SHAPES[shape]
    w = LoraWeight(
        torch.randn(SLOTS, len(rows) * rank, inputs, dtype=dtype, device=device),
        torch.randn(SLOTS, sum(rows), rank, dtype=dtype, device=device) / (inputs * rank) ** 0.5,
        rows,
    )
    slots = torch.tensor(tokens, dtype=torch.int32, device=device)
    x = torch.randn(len(slots), inputs + 8, dtype=dtype, device=device)[:, 8:]  # of a wider tensor
    y = torch.randn(len(slots), sum(rows), dtype=dtype, device=device)

    added = torch.zeros(y.shape, dtype=torch.float64, device=device)
    for slot in range(SLOTS):
        merged = [
            b.double() @ a.double()
            for a, b in zip(w.a[slot].split(rank), w.b[slot].split(rows), strict=True)
        ]
        own = slots == slot
        added[own] = x[own].double() @ torch.cat(merged).T
    wanted = (y.double() + added).to(dtype)
    told = backend.operations["add_lora"](y.clone, x, w, LoraTokens(slots))
    torch.testing.assert_close(told, wanted)
    assert torch.equal(told[slots < 0], y[slots < 0])


def test_a_token_has_what_it_has_alone(backend: Backend, device: torch.device) -> None:
    """Adapters of others, and padding behind it, change nothing of a token's."""
    rows, inputs, rank = (24, 8), 1100, 8
    w = LoraWeight(
        torch.randn(SLOTS, len(rows) * rank, inputs, device=device),
        torch.randn(SLOTS, sum(rows), rank, device=device) / (inputs * rank) ** 0.5,
        rows,
    )
    x, y = torch.randn(9, inputs, device=device), torch.randn(9, sum(rows), device=device)
    slots = torch.tensor((1, 0, 2, 2, -1, 1, 0, -1, -1), dtype=torch.int32, device=device)
    add_lora = backend.operations["add_lora"]
    together = add_lora(y.clone, x, w, LoraTokens(slots))
    for token in range(len(slots)):
        one = slice(token, token + 1)
        alone = add_lora(y[one].clone, x[one], w, LoraTokens(slots[one]))
        torch.testing.assert_close(together[one], alone, rtol=1e-5, atol=1e-5)
