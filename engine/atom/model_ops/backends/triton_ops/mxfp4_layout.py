# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The places of an MXFP4 matrix' rows [N, K], one after the other or interleaved
(quantised/mxfp4_interleaved.py): their codes, by words or by bytes, and their exponents."""

from __future__ import annotations

import triton
import triton.language as tl

# Of a row, what lies side by side where rows are interleaved: the codes of 128 inputs, the
# exponents of 256.
RUN_WORDS, RUN_BYTES, RUN_EXPONENTS = tl.constexpr(16), tl.constexpr(64), tl.constexpr(8)


@triton.constexpr_function
def exponents_of(K, interleaved):
    """Return the number of a row's exponents, including the padding of its last run."""
    return (K + 255) // 256 * 8 if interleaved else K // 32


@triton.jit
def places(n, number, WIDTH: tl.constexpr, RUN: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the places of elements `number` in rows n, each row WIDTH wide. n and number have
    shapes that broadcast."""
    further = row_places(n, number, WIDTH, RUN, INTERLEAVED)
    return further + first_row_places(number, RUN, INTERLEAVED)


@triton.jit
def first_row_places(number, RUN: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the places of elements `number` in the first row."""
    # Eight rows' runs follow one another, so the next run of a row is eight further.
    if INTERLEAVED:
        return number // RUN * (8 * RUN) + number % RUN
    else:
        return number


@triton.jit
def row_places(n, number, WIDTH: tl.constexpr, RUN: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the offsets of rows n from the first row. The last run may be shorter."""
    if INTERLEAVED:
        # Of 2,880 inputs the last run is half as long; only there does a row's stride differ.
        WHOLE: tl.constexpr = WIDTH // RUN * RUN
        long = RUN if WHOLE == WIDTH else tl.where(number < WHOLE, RUN, WIDTH - WHOLE)
        return n // 8 * (8 * WIDTH) + n % 8 * long
    else:
        return n * WIDTH
