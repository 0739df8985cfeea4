# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Convert tiles of 4-bit matrices to numbers: two neighbouring inputs a byte, a scale per group.

A byte's inputs become two tiles, of even and of odd inputs, so no interleaving is needed;
activations are divided in the same way. MXFP4 is exact with its scale, int4 minus its zero point
without.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fp4_values(codes):
    """Map e2m1 in int16 → float16, × 2^-14: exponent and fraction are at the places of a half's
    subnormals, so ½, which has no leading one in either, comes out right."""
    # Shifts and masks, no table: registers cannot be indexed, and memory would be asked for each
    # code.
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def scale_values(scales, FP4: tl.constexpr):
    """Stored scales as float32; of MXFP4 exponents, × 2^14, which `fp4_values` lack."""
    if FP4:
        # e8m0 is float32's exponent: shifted to its place it is the scale.
        return (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 16384.0
    else:
        return scales.to(tl.float32)


@triton.jit
def zero_points(pairs, n):
    """Map pairs uint8 [N, GROUPS], of rows n // 2 → the zero points of rows n, int16: two a
    byte."""
    # Two rows share a byte, as GPTQ packs zero points along outputs, hence the shift by the row's
    # parity.
    return (pairs.to(tl.int16) >> ((n % 2) * 4).to(tl.int16)[:, None]) & 15


@triton.jit
def group_values(scale_ptr, zero_ptr, n, groups, group, known):
    """Scales as stored and zero points int16 of rows n [N] in these of their `groups` groups,
    [1, G]: [N, G] each. zero_ptr: None where every zero point is 8, which is [1, 1] then."""
    scales = tl.load(scale_ptr + n.to(tl.int64)[:, None] * groups + group, mask=known, other=0)
    zeros = tl.full([1, 1], 8, tl.int16)
    if zero_ptr is not None:
        at = zero_ptr + (n // 2).to(tl.int64)[:, None] * groups + group
        zeros = zero_points(tl.load(at, mask=known, other=0), n)
    return scales, zeros


@triton.jit
def by_input(
    values, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """values [N, GROUPS] of groups as [N, PAIRS] of pairs of inputs; of one group as they are."""
    if GROUPS > 1:
        # A broadcast and a reshape are only a layout; a gather would go through shared memory.
        spread = tl.broadcast_to(values[:, :, None], (BLOCK_N, GROUPS, PAIRS // GROUPS))
        values = tl.reshape(spread, (BLOCK_N, PAIRS))
    return values


@triton.jit
def unpacked(codes, scales, zeros, dtype: tl.constexpr, FP4: tl.constexpr):
    """Map codes uint8 [N, PAIRS]; scales float32, zeros of the same shape or [N, 1] → even and odd
    inputs."""
    codes = codes.to(tl.int16)
    # Low half first: the checkpoint's order, so pairs of x split alike.
    even, odd = codes & 15, codes >> 4
    if FP4:
        even, odd = fp4_values(even), fp4_values(odd)
    else:
        even, odd = even - zeros, odd - zeros
    # In float32: a 16-bit product of code and scale would be rounded twice.
    return (even.to(tl.float32) * scales).to(dtype), (odd.to(tl.float32) * scales).to(dtype)


@triton.jit
def unpacked_by_index(
    codes, scale_ptr, zero_ptr, index_ptr, n, groups, pair, known, dtype: tl.constexpr
):
    """`unpacked` int4 of the pairs [PAIRS], whose inputs' groups index_ptr names one by one."""
    # The index is read once for all rows of the tile.
    inside = tl.max(known.to(tl.int32), axis=0) > 0
    even_group = tl.load(index_ptr + 2 * pair, mask=inside, other=0)[None, :]
    odd_group = tl.load(index_ptr + 2 * pair + 1, mask=inside, other=0)[None, :]
    scales, zeros = group_values(scale_ptr, zero_ptr, n, groups, even_group, known)
    even, _ = unpacked(codes, scales.to(tl.float32), zeros, dtype, False)
    scales, zeros = group_values(scale_ptr, zero_ptr, n, groups, odd_group, known)
    _, odd = unpacked(codes, scales.to(tl.float32), zeros, dtype, False)
    return even, odd
