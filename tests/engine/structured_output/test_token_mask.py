"""The reference's token mask against the definition, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.ops.inputs import load_backend


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 200])
def test_a_token_is_left_where_its_bit_is_set(vocab: int) -> None:
    draw = np.random.default_rng(vocab)
    logits = torch.randn(5, vocab)
    rows = [4, 1, 2]
    bits = draw.integers(-(2**31), 2**31, (3, -(-vocab // 32)), dtype=np.int32)
    masked = logits.clone()
    apply = load_backend("torch_ref").operations["apply_token_mask"]
    apply(masked, torch.tensor(rows), torch.from_numpy(bits))
    for row in range(5):
        for token in range(vocab):
            allowed = (
                row not in rows or (int(bits[rows.index(row), token // 32]) >> (token % 32)) & 1
            )
            expected = float(logits[row, token]) if allowed else -float("inf")
            assert float(masked[row, token]) == expected
