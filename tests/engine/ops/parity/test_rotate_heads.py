"""Heads of an image encoder are rotated in place, whatever lies beside them."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from tests.engine.ops.inputs import assert_rows_agree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [8, 16, 64, 72, 80, 88])
@pytest.mark.parametrize(("tokens", "heads", "beside"), [(1, 2, 0), (5, 6, 3), (70, 18, 9)])
def test_elements_turn_with_those_half_a_head_on(
    backend: Backend, device: torch.device, dtype: torch.dtype, head_dim: int, tokens: int,
    heads: int, beside: int,
) -> None:  # fmt: skip
    whole = torch.randn(tokens, heads + beside, head_dim, device=device).to(dtype)
    angles = torch.randn(tokens, head_dim // 2, device=device)
    expected = whole.double()
    turned = torch.view_as_complex(
        torch.stack(expected[:, :heads].chunk(2, dim=-1), dim=-1).contiguous()
    )
    turned = turned * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    expected[:, :heads] = torch.cat((turned.real, turned.imag), dim=-1)
    backend.operations["rotate_heads"](whole[:, :heads], angles.cos(), angles.sin())
    assert_rows_agree(whole.flatten(1), expected.flatten(1), dtype)
    assert torch.equal(whole[:, heads:], expected[:, heads:].to(dtype))
