"""What adapters add to a product is what merging each of them into the matrix would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.values import LinearWeight, LoraWeight, NormWeight, Stream
from atom.utils.forward_context import LoraTokens
from tests.engine.ops.inputs import assert_rows_agree

gpu = pytest.mark.gpu

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


@pytest.mark.parametrize("spread", [1, 40], ids=["adapters", "experts of adapters"])
def test_a_token_has_what_it_has_alone(spread: int, backend: Backend, device: torch.device) -> None:
    """Adapters of others, and padding behind it, change nothing of a token's."""
    rows, inputs, rank = (24, 8), 1100, 8
    count = SLOTS * spread
    w = LoraWeight(
        torch.randn(count, len(rows) * rank, inputs, device=device),
        torch.randn(count, sum(rows), rank, device=device) / (inputs * rank) ** 0.5,
        rows,
    )
    x, y = torch.randn(9, inputs, device=device), torch.randn(9, sum(rows), device=device)
    slots = torch.tensor((1, 0, 2, 2, -1, 1, 0, -1, -1), dtype=torch.int32, device=device)
    slots = torch.where(slots < 0, slots, slots * spread)
    add_lora = backend.operations["add_lora"]
    together = add_lora(y.clone, x, w, LoraTokens(slots))
    for token in range(len(slots)):
        one = slice(token, token + 1)
        alone = add_lora(y[one].clone, x[one], w, LoraTokens(slots[one]))
        torch.testing.assert_close(together[one], alone, rtol=1e-5, atol=1e-5)


# Rows of a matrix' projections, inputs, rank, slots of the tokens: one token with an adapter and
# without; more rank than a program holds; tokens that have one kernel after the other.
NORMED = {
    "q, k and v": ((24, 10, 6), 96, 5, (2,)),
    "no adapter": ((24, 8, 8), 64, 8, (-1,)),
    "gate and up": ((36, 36), 1100, 16, (0,)),
    "many inputs": ((18,), 9000, 16, (0,)),
    "a high rank": ((20, 20), 64, 70, (1,)),
    "several": ((20, 20), 64, 16, (1, -1, 0)),
    "q, k and v of 8B": pytest.param(((4096, 1024, 1024), 4096, 16, (1,)), marks=gpu),
    "down of 8B": pytest.param(((4096,), 12288, 16, (2,)), marks=gpu),
    "gate and up of 8B": pytest.param(((12288, 12288), 4096, 16, (2,)), marks=gpu),
}
NORMED_CASES = [
    case if hasattr(case, "marks") else pytest.param(case, id=name) for name, case in NORMED.items()
]


@pytest.mark.pairs
@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("case", NORMED_CASES)
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_a_product_with_adapters(
    backend: Backend,
    reference: Backend,
    device: torch.device,
    case: tuple[tuple[int, ...], int, int, tuple[int, ...]],
    begins: bool,
    is_gated: bool,
    dtype: torch.dtype,
) -> None:
    rows, inputs, rank, slots_of = case
    draw = torch.randn
    count, outputs = len(slots_of), sum(rows)
    x, addend = (draw(count, inputs, device=device).to(dtype) for _ in range(2))
    norm = NormWeight(draw(inputs, device=device).to(dtype), 1e-6)
    lora = LoraWeight(
        draw(SLOTS, len(rows) * rank, inputs, device=device).to(dtype),
        (draw(SLOTS, outputs, rank, device=device) / (inputs * rank) ** 0.5).to(dtype),
        rows,
    )
    bias = draw(outputs, device=device).to(dtype) if begins else None
    weight = (draw(outputs, inputs, device=device) / inputs**0.5).to(dtype)
    slots = torch.tensor(slots_of, dtype=torch.int32, device=device)
    activation = Activation.SILU if is_gated else None

    def stream(of: torch.dtype) -> Stream:
        residual = x.to(of, copy=True)
        return Stream(residual) if begins else Stream(residual).plus(addend.to(of, copy=True))

    narrow = LinearWeight(weight, bias, lora=lora)
    wide = LoraWeight(lora.a.double(), lora.b.double(), rows)
    exact = LinearWeight(weight.double(), None if bias is None else bias.double(), lora=wide)
    composed = ComposedOps(cast(Ops, SimpleNamespace(**reference.operations)))
    expected, settled = composed.norm_linear_lora(
        stream(torch.float64),
        NormWeight(norm.weight.double(), norm.eps),
        exact,
        LoraTokens(slots),
        activation,
    )
    product = composed.linear_lora(x.double(), exact, LoraTokens(slots))
    # One step's tokens for several products, as layers have them.
    tokens = LoraTokens(slots)
    for _ in range(2):
        out, after = backend.operations["norm_linear_lora"](
            stream(dtype), norm, narrow, tokens, activation
        )
        assert after.is_settled
        torch.testing.assert_close(after.residual, settled.residual.to(dtype))
        assert_rows_agree(out, expected, dtype, slack=2.0)
        told = backend.operations["linear_lora"](x, narrow, tokens)
        assert_rows_agree(told, product, dtype, slack=2.0)
