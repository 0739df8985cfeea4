"""Exponential noise as a pure function of (seed, position, token): it makes sampling repeatable.

A draw is two exponential races: between groups of GROUP neighbouring tokens, each with the weight
of its tokens together, and then between the tokens of the group that won. The result is a token
drawn in proportion to its weight, for the noise of V / GROUP + GROUP numbers instead of V.

Every backend's sampler follows this definition: a 32-bit hash, then float32 steps that any device
has (conversions, additions, products, the bits of a float, no library function). So backends differ
by no more than the last bits of a contracted product.
"""

from __future__ import annotations

import math

import torch

LN2 = math.log(2.0)
GROUP = 64
# Separates the noise of a group's tokens from that of the groups.
WITHIN_GROUP = 0x5BF03635
# Spreads neighbouring token ids over 32 bits (the golden ratio, odd).
SPREAD = 0x9E3779B1
# -log(1 - t) = t · Σ SERIES[i] tⁱ for t in [0, 1/2], to 2e-7: a Chebyshev fit.
SERIES = (
    0.999999874, 0.500032172, 0.33200683, 0.270477034,
    0.0483580571, 0.75458842, -1.03603899, 1.15861403,
)  # fmt: skip
_MASK32 = 0xFFFFFFFF


def row_keys(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Hash (seed, position) to a key: 32 bits in int64, of the arguments' shape."""
    key = _mix32((seed & _MASK32) ^ _mix32((seed >> 32) & _MASK32))
    return _mix32(key ^ (position & _MASK32))


def exponential_noise(keys: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Draw from Exp(1) in float32 for each (row key, number of a group or token); int64 arguments,
    broadcast.

    The draws that win a race are small, so small draws keep all their digits: a uniform v near 0
    gives -log(1 - v) by the series itself; from 1/2 on, 1 - v is halved into [1/2, 1) and every
    halving counts log 2.
    """
    bits = _mix32(((numbers * SPREAD) & _MASK32) ^ keys)
    v = bits.float() * 2.0**-32 + 2.0**-33  # (0, 1]
    rest = (1.0 - v).clamp_min(2.0**-25)
    rest_bits = rest.view(torch.int32)
    halved = ((rest_bits & 0x007FFFFF) | 0x3F000000).view(torch.float32)  # its digits in [1/2, 1)
    is_small = v < 0.5
    halvings = torch.where(is_small, 0, 126 - (rest_bits >> 23))
    t = torch.where(is_small, v, 1.0 - halved)
    series = torch.full_like(t, SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        series = series * t + coefficient
    return series * t + halvings.float() * LN2


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """Mix by a 32-bit finaliser with good avalanche (constants: lowbias32, Ellis Wellons 2018),
    carried in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)
