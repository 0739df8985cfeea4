"""Four bits: their numbers, rounding to them, and the arrangements of matrices and exponents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.quant import unshuffled

FP4 = torch.float4_e2m1fn_x2
E8M0 = torch.float8_e8m0fnu
_VALUES = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
_GROUP = 32
Arrange = Callable[[torch.Tensor], torch.Tensor]


def numbers(packed: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Bytes [.., n / 2] and exponents [.., n / 32] as they are read → float32 [.., n]."""
    packed, exponents = packed.view(torch.uint8), exponents.view(torch.uint8)
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()
    table = torch.cat((_VALUES, -_VALUES))
    scale = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
    return table[codes] * scale.repeat_interleave(_GROUP, -1)


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [n, in] → bytes, and exponents by the even rule: the largest magnitude, rounded to a power
    of two by its first two bits, is given the range from 4 to 8."""
    groups = x.float().unflatten(1, (-1, _GROUP))
    largest = groups.abs().amax(2, keepdim=True).clamp_min(2.0**-120)
    power = (largest * (8 / 7)).log2().floor() - 2
    scaled = groups / power.exp2()
    code = (scaled.abs().unsqueeze(-1) - _VALUES).abs().argmin(-1) + 8 * scaled.signbit()
    low, high = code.to(torch.uint8).flatten(1).unflatten(1, (-1, 2)).unbind(-1)
    return low | (high << 4), (power.squeeze(2) + 127).to(torch.uint8)


def restored(arranged: torch.Tensor, arrange: Arrange) -> torch.Tensor:
    """What `arrange` made `arranged` of, bytes of the same shape."""
    flat = arranged.view(torch.uint8).flatten()
    places = arrange(torch.arange(flat.numel()).view(arranged.shape)).flatten()
    return torch.empty_like(flat).scatter_(0, places, flat).view(arranged.shape)


def lanes(x: torch.Tensor, parts: int) -> torch.Tensor:
    """The order of the kernels with 16-bit inputs, of a stack of matrices [E, N, bytes]: of each 16
    rows 64 bytes, 16 at a time; a tile of gate's rows before one of up's if there are two parts."""
    count, rows, width = x.shape
    tiles = x.view(count, parts, rows // parts // 16, 16, width // 64, 4, 16)
    return tiles.permute(0, 2, 1, 4, 5, 3, 6).reshape(x.shape)


def lanes_of_exponents(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Of a stack of exponents [E, N, groups]: two rows of 16 and two quads of groups are together;
    the two rows are gate's and up's if there are two parts."""
    count, rows, width = x.shape
    inner = (parts, rows // 32) if parts == 2 else (rows // 32, 2)
    tiles = x.view(count, *inner, 16, width // 8, 2, 4)
    order = (0, 2, 4, 6, 3, 5, 1) if parts == 2 else (0, 1, 4, 6, 3, 5, 2)
    return tiles.permute(order).reshape(x.shape)


def tiles_of_exponents(x: torch.Tensor) -> torch.Tensor:
    """The order of the kernels of four bits alone: exponents [M, groups], M of 256, groups of 8."""
    rows, width = x.shape
    tiles = x.view(rows // 32, 2, 16, width // 8, 2, 4)
    return tiles.permute(0, 3, 5, 2, 4, 1).reshape(x.shape)


def padded_exponents(x: torch.Tensor) -> torch.Tensor:
    """Room for whole tiles; what is not written has the mark of NaN."""
    room = torch.full((-(-x.shape[0] // 256) * 256, -(-x.shape[1] // 8) * 8), 255, dtype=x.dtype)
    room[: x.shape[0], : x.shape[1]] = x
    return room


def _shuffle_exponents(checks: Checks, scale: torch.Tensor) -> torch.Tensor:
    checks.that(scale.dtype.itemsize == 1 and scale.dim() == 2, "exponents are bytes [N, groups]")
    return tiles_of_exponents(padded_exponents(scale.view(torch.uint8))).view(scale.dtype)


def _shuffle_by_lanes(checks: Checks, src: torch.Tensor, NLane: int, gate_up: bool) -> torch.Tensor:
    checks.that(NLane == 16, f"lanes of {NLane} rows")
    checks.tensor("src", src, [FP4, torch.uint8], (None, None, None))
    parts = 2 if gate_up else 1
    checks.that(src.shape[1] % (16 * parts) == 0, f"{src.shape[1]} rows are no tiles")
    checks.that(src.shape[2] % 64 == 0, f"{src.shape[2]} bytes are no tiles")
    return lanes(src.view(torch.uint8), parts).view(src.dtype)


def _shuffle_exponents_by_lanes(
    checks: Checks, src: torch.Tensor, experts_cnt: int, gate_up: bool
) -> torch.Tensor:
    checks.that(src.dim() == 2 and src.shape[0] % experts_cnt == 0, "a stack is [E · N, groups]")
    rows = src.shape[0] // experts_cnt
    checks.that(rows % 32 == 0 and src.shape[1] % 8 == 0, "no whole tiles")
    stack = src.view(experts_cnt, rows, src.shape[1])
    return lanes_of_exponents(stack, 2 if gate_up else 1).view(src.shape)


def _round(
    checks: Checks,
    x: torch.Tensor,
    scale: torch.Tensor | None,
    quant_dtype: torch.dtype,
    shuffle: bool,
    **rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    checks.on("gfx950")
    checks.tensor("x", x, HALF, (None, None))
    checks.that(quant_dtype is FP4 and scale is None, "rounds to four bits, with scales of its own")
    checks.that(x.shape[1] % _GROUP == 0, "inputs are no whole groups")
    codes, exponents = rounded(x)
    if shuffle:
        exponents = tiles_of_exponents(padded_exponents(exponents))
    return codes.view(FP4), exponents.view(E8M0)


def _exponents(checks: Checks, name: str, x: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Of rows in tiles, as they are read."""
    room = (-(-shape[0] // 256) * 256, -(-shape[1] // 8) * 8)
    checks.tensor(name, x, [E8M0, torch.uint8], room)
    return restored(x, tiles_of_exponents)[: shape[0], : shape[1]]


def _product(
    checks: Checks,
    A: torch.Tensor,
    B: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    alpha: float,
    beta: float,
    bpreshuffle: bool,
    **rest: Any,
) -> torch.Tensor:
    checks.on("gfx950")
    checks.tensor("A", A, [FP4], (None, None))
    checks.tensor("B", B, [FP4], (None, A.shape[1]))
    checks.that(B.shape[0] % 32 == 0 and B.shape[1] % 128 == 0, "B is no whole tiles")
    checks.that(getattr(B, "is_shuffled", False) and bpreshuffle, "B is not in tiles")
    checks.that(bias is None, "its tuned kernels add no bias")
    checks.that(dtype is torch.bfloat16 and (alpha, beta) == (1.0, 0.0), "not modelled")
    checks.that(not any(rest.values()), f"not modelled: {rest}")
    groups = A.shape[1] // 16
    a = numbers(A, _exponents(checks, "A_scale", A_scale, (A.shape[0], groups)))
    b = numbers(
        unshuffled(B.view(torch.uint8)),
        _exponents(checks, "B_scale", B_scale, (B.shape[0], groups)),
    )
    return (a @ b.t()).to(dtype)


RESULTS = {
    "e8m0_shuffle": _shuffle_exponents,
    "shuffle_weight_a16w4": _shuffle_by_lanes,
    "shuffle_scale_a16w4": _shuffle_exponents_by_lanes,
    "per_1x32_f4_quant_hip": _round,
    "gemm_a4w4": _product,
}
