# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Where rows of an MXFP4 matrix [N, K] stand, one after the other or in octets
(quantised/octets.py): their codes, by words or by bytes, and their exponents."""

from __future__ import annotations

import triton
import triton.language as tl

# Of a row, what lies side by side in octets: the codes of 128 inputs, the exponents of 256.
RUN_WORDS, RUN_BYTES, RUN_EXPONENTS = tl.constexpr(16), tl.constexpr(64), tl.constexpr(8)


@triton.constexpr_function
def exponents_of(K, octets):
    """How many exponents a row has, with those that fill its last run."""
    return (K + 255) // 256 * 8 if octets else K // 32


@triton.jit
def places(n, number, WIDTH: tl.constexpr, RUN: tl.constexpr, OCTETS: tl.constexpr):
    """Where what is so many in rows n stands, each row WIDTH wide. n and number have shapes that go
    with each other."""
    return row_places(n, number, WIDTH, RUN, OCTETS) + first_row_places(number, RUN, OCTETS)


@triton.jit
def first_row_places(number, RUN: tl.constexpr, OCTETS: tl.constexpr):
    """Where what is so many in the first row stands."""
    if OCTETS:
        return number // RUN * (8 * RUN) + number % RUN
    else:
        return number


@triton.jit
def row_places(n, number, WIDTH: tl.constexpr, RUN: tl.constexpr, OCTETS: tl.constexpr):
    """How much further it stands in rows n. The last run may be shorter."""
    if OCTETS:
        WHOLE: tl.constexpr = WIDTH // RUN * RUN
        long = RUN if WHOLE == WIDTH else tl.where(number < WHOLE, RUN, WIDTH - WHOLE)
        return n // 8 * (8 * WIDTH) + n % 8 * long
    else:
        return n * WIDTH
