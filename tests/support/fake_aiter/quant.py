"""Quantisation of activations, and the tiles of shuffled matrices."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks


def quantised(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [.., n] → codes, and scales [.., 1] float32, of the last dimension each."""
    limit = 127.0 if dtype is torch.int8 else torch.finfo(dtype).max
    scale = x.float().abs().amax(-1, keepdim=True) / limit
    scale = torch.where(scale > 0, scale, 1.0)
    codes = x.float() / scale
    codes = codes.round() if dtype is torch.int8 else codes
    return codes.clamp(-limit, limit).to(dtype), scale


def _per_token(
    checks: Checks,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    quant_dtype: torch.dtype,
    **rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    checks.tensor("x", x, HALF, (None, None))
    checks.that(quant_dtype in (checks.fp8, torch.int8), f"quantises to no {quant_dtype} here")
    checks.that(scale is None, "the double finds scales itself")
    return quantised(x, quant_dtype)


def _per_group(
    checks: Checks,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    quant_dtype: torch.dtype,
    group_size: int,
    transpose_scale: bool,
    **rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    checks.tensor("x", x, HALF, (None, None))
    checks.that(quant_dtype in (checks.fp8, torch.int8), f"quantises to no {quant_dtype} here")
    checks.that(group_size in (32, 64, 128), f"groups of {group_size}")
    checks.that(x.shape[1] % group_size == 0, "inputs are no whole groups")
    checks.that(scale is None, "the double finds scales itself")
    codes, scales = quantised(x.unflatten(1, (-1, group_size)), quant_dtype)
    scales = scales.squeeze(-1)
    if transpose_scale:  # the same shape, its columns one behind the other in memory
        scales = scales.t().contiguous().view(scales.shape)
    return codes.flatten(1), scales


def _shuffle_weight(
    checks: Checks, x: torch.Tensor, layout: tuple[int, int] = (16, 16), use_int4: bool = False,
    **rest: Any,
) -> torch.Tensor:  # fmt: skip
    checks.that(not use_int4, "no int4 here")
    rows, columns = layout[0], 2 * layout[1]
    checks.that(x.shape[-2] % rows == 0, f"{x.shape[-2]} rows are no multiple of {rows}")
    checks.that(x.shape[-1] % columns == 0, f"{x.shape[-1]} columns are no multiple of {columns}")
    vector = 16 // x.element_size()
    bits = x.view(torch.uint8) if x.element_size() == 1 else x
    tiles = bits.view(
        -1, x.shape[-2] // rows, rows, x.shape[-1] // columns, columns // vector, vector
    )
    shuffled = tiles.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape).view(x.dtype)
    shuffled.is_shuffled = True  # type: ignore[attr-defined]
    return shuffled


def unshuffled(x: torch.Tensor) -> torch.Tensor:
    """What a tile of `shuffle_weight`'s (16, 16) was made of."""
    vector = 16 // x.element_size()
    bits = x.view(torch.uint8) if x.element_size() == 1 else x
    rows, columns = x.shape[-2], x.shape[-1]
    tiles = bits.view(-1, rows // 16, columns // 32, 32 // vector, 16, vector)
    return tiles.permute(0, 1, 4, 2, 3, 5).contiguous().view(x.shape).view(x.dtype)


RESULTS = {
    "per_token_quant_hip": _per_token,
    "per_group_quant_hip": _per_group,
    "shuffle_weight": _shuffle_weight,
}
