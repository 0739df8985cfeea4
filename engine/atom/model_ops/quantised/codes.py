"""Codes of few bits: two to a byte, the values of e2m1 and e2m3, the two kinds of e4m3.

Pure functions on tensors of any device. A byte holds two neighbours, the first in its low half,
which is also how int32 words of checkpoints hold eight.
"""

from __future__ import annotations

import torch

FP8_MAX = 448.0  # of e4m3fn; e4m3fnuz reaches 240, and its bits mean half as much
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_MAX = _FP4_VALUES[-1]
_NEGATIVE_ZERO = 0x80


def unpack_pairs(packed: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 [.., n] → codes [.., 2·n]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def pack_pairs(codes: torch.Tensor) -> torch.Tensor:
    """Pack uint8 codes below 16 [.., 2·n] → [.., n]."""
    low, high = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return low | (high << 4)


def unpack_fours(packed: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 [.., 3·n] → codes of six bits [.., 4·n], the first in the lowest bits."""
    first, second, third = packed.unflatten(-1, (-1, 3)).unbind(-1)
    codes = (
        first & 63,
        (first >> 6) | ((second & 15) << 2),
        (second >> 4) | ((third & 3) << 4),
        third >> 2,
    )
    return torch.stack(codes, dim=-1).flatten(-2)


def fp6_values(codes: torch.Tensor) -> torch.Tensor:
    """Convert e2m3 codes to float32; the highest of six bits is the sign."""
    exponent, eighths = (codes >> 3) & 3, (codes & 7).float()
    normal = torch.ldexp(8 + eighths, exponent.int() - 1)
    values = torch.where(exponent == 0, eighths, normal) / 8
    return torch.where(codes >= 32, -values, values)


def fp4_values(codes: torch.Tensor) -> torch.Tensor:
    """Convert e2m1 codes to float32; the highest of four bits is the sign."""
    table = torch.tensor((*_FP4_VALUES, *(-value for value in _FP4_VALUES)), device=codes.device)
    return table[codes.long()]


def fp4_codes(values: torch.Tensor) -> torch.Tensor:
    """Return the nearest e2m1 codes of float32 values within ±6; ties go to the even mantissa."""
    sizes = torch.tensor(_FP4_VALUES, device=values.device)
    between = (sizes[1:] + sizes[:-1]) / 2
    magnitude = values.abs()
    code = torch.bucketize(magnitude, between)  # ties: to the lower code
    tie = (magnitude == between[code.clamp_max(len(between) - 1)]) & (code % 2 == 1)
    return (code + tie + 8 * values.signbit()).to(torch.uint8)


def exponent_scales(exponents: torch.Tensor) -> torch.Tensor:
    """Convert e8m0 (uint8) to float32 powers of two, 127 for 1."""
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.int() - 127)


def to_fnuz(data: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convert e4m3 numbers to e4m3fnuz, which MI300's matrix cores take: the same bits mean half of
    e4m3fn's value, and the bits of -0 mean NaN. NaN stays NaN."""
    bits = data.view(torch.uint8)
    nan = (bits & 0x7F) == 0x7F
    moved = bits.masked_fill((bits == _NEGATIVE_ZERO) & ~nan, 0).masked_fill(nan, _NEGATIVE_ZERO)
    return moved.view(torch.float8_e4m3fnuz), scale * 2
