"""Matrices in NVFP4, MXFP8 and MXFP6 as they are published, and the numbers that they stand for.

Written from the formats' definitions in float64, without the engine's code. A matrix in a layout
below has numbers that fp8 with a scale per output holds exactly: `exact` False drops that.
"""

from __future__ import annotations

import torch

Tensors = dict[str, torch.Tensor]

_FP4 = torch.tensor(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64
)
_MOST = 448.0  # of e4m3
_LEAST = 2.0**-6  # the smallest normal number of e4m3
# Eighths from 1 to 2 that, times 1.5, have the four significant bits of e4m3; 2 is the next one.
_EXACT = torch.tensor([1.0, 1.25, 1.5, 2.0], dtype=torch.float64)


def nvfp4(
    x: torch.Tensor, *, inverse: bool = False, exact: bool = True
) -> tuple[Tensors, torch.Tensor]:
    """The Model Optimizer's tensors of x [out, in]; with `inverse` those of compressed-tensors,
    whose scale of the matrix divides."""
    groups = x.double().unflatten(1, (-1, 16))
    whole = (x.abs().max().double() / (6 * _MOST)).float().double()
    if inverse:  # a power of two, whose inverse has no error
        whole = whole.log2().ceil().exp2() if exact else 1 / (1 / whole).float().double()
    scale = groups.abs().amax(2) / 6 / whole
    if exact:
        power = scale.log2().floor().exp2()
        eighths = (scale / power)[..., None]
        scale = _EXACT[(eighths - _EXACT).abs().argmin(-1)] * power
    stored = scale.clamp(2.0**-9, 384 if exact else _MOST).to(torch.float8_e4m3fn)
    steps = stored.double() * whole
    codes = ((groups / steps[..., None])[..., None] - _FP4).abs().argmin(-1)
    values = _FP4[codes] * stored.double()[..., None] * whole
    flat = codes.flatten(1).to(torch.uint8)
    packed = flat[:, ::2] | (flat[:, 1::2] << 4)
    if inverse:
        tensors = {
            "weight_packed": packed,
            "weight_scale": stored,
            "weight_global_scale": (1 / whole).float().reshape(1),
            "input_global_scale": torch.tensor([10.0]),
        }
    else:
        tensors = {
            "weight": packed,
            "weight_scale": stored,
            "weight_scale_2": whole.float(),
            "input_scale": torch.tensor(0.1),
        }
    return tensors, values.flatten(1).float()


def mxfp8(
    x: torch.Tensor, name: str = "weight_scale", *, exact: bool = True
) -> tuple[Tensors, torch.Tensor]:
    """e4m3 with a power of two of 32 inputs. name: of the scales."""
    groups = x.double().unflatten(1, (-1, 32))
    power = groups.abs().amax(2, keepdim=True).log2().floor() - 8
    codes = (groups / power.exp2()).clamp(-_MOST, _MOST).to(torch.float8_e4m3fn)
    values = codes.double() * power.exp2()
    if exact:  # numbers so small beside their output's largest have no exponent
        least = _LEAST * values.abs().amax((1, 2), keepdim=True) / (_MOST / 2)
        codes = codes.double().masked_fill(values.abs() < least, 0).to(codes.dtype)
        values = codes.double() * power.exp2()
    scale = (power[..., 0] + 127).to(torch.uint8)
    return {"weight": codes.flatten(1), name: scale}, values.flatten(1).float()


def mxfp6(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors' e2m3, four codes of six bits in three bytes, the first lowest."""
    sizes = [m / 8 for m in range(8)] + [(1 + m / 8) * 2**e for e in range(3) for m in range(8)]
    found = torch.tensor(sizes, dtype=torch.float64)
    groups = x.double().unflatten(1, (-1, 32))
    power = groups.abs().amax(2, keepdim=True).log2().floor() - 2
    codes = ((groups / power.exp2()).abs()[..., None] - found).abs().argmin(-1)
    values = found[codes] * groups.sign() * power.exp2()
    codes = (codes + 32 * (groups < 0)).flatten(1).int()
    word = sum(codes[:, place::4] << (6 * place) for place in range(4))
    assert isinstance(word, torch.Tensor)
    packed = torch.stack([(word >> shift) & 255 for shift in (0, 8, 16)], -1).flatten(1)
    scale = (power[..., 0] + 127).to(torch.uint8)
    return {"weight_packed": packed.to(torch.uint8), "weight_scale": scale}, values.flatten(
        1
    ).float()


def as_fp8_rows(values: torch.Tensor) -> torch.Tensor:
    """The nearest numbers in e4m3 with an output's power of two, of which the largest just fits, in
    float64: what a matrix without a scale of its own is converted to."""
    found = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()  # 0 to 448
    least = (values.abs().amax(1, keepdim=True) / _MOST).clamp_min(2.0**-60).log2().ceil().exp2()
    sizes = values.abs() / least
    above = torch.bucketize(sizes, found).clamp_max(len(found) - 1)
    below = (above - 1).clamp_min(0)
    up, down = found[above] - sizes, sizes - found[below]
    even = torch.where(above % 2 == 0, above, below)
    nearest = torch.where(up < down, above, torch.where(up > down, below, even))
    return found[nearest] * values.sign() * least
