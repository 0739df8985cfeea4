"""Every backend's token mask is the reference's, to the bit, and touches no row without one."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.backend import Backend

gpu = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "vocab"), [(1, 5), (3, 32), (7, 4099), pytest.param(256, 151936, marks=gpu)]
)
def test_masked_logits_equal_the_reference(
    backend: Backend, reference: Backend, device: torch.device, rows: int, vocab: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    draw = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows + 2, vocab, generator=draw).to(device, dtype)
    guided = torch.randperm(rows + 2, generator=draw)[:rows].to(device)
    words = -(-vocab // 32)
    bits = torch.randint(-(2**31), 2**31, (rows, words), generator=draw).int().to(device)
    bits[0] = 0  # a row that nothing is left of
    expected, masked = logits.clone(), logits.clone()
    reference.operations["apply_token_mask"](expected, guided, bits)
    backend.operations["apply_token_mask"](masked, guided, bits)
    assert torch.equal(masked, expected)
    assert (masked[guided[0]] == -torch.inf).all()
    others = [row for row in range(rows + 2) if row not in guided.tolist()]
    assert torch.equal(masked[others], logits[others])
