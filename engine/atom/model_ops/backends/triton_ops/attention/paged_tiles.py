# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Shared parts of decode and prefill attention: arguments, addressing of the paged cache, and one
softmax step.

Scores are kept in base 2: the caller's scale carries log2(e), so that exponentials are exp2.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from atom.model_ops.values import AttentionShape, LayerCache
from atom.sizing.mask_rule import MaskKind, MaskRule
from atom.utils.forward_context import AttentionMetaData


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A layer's attention in one step: its shape, its cache, and the rows."""

    shape: AttentionShape
    cache: LayerCache
    step: AttentionMetaData


def mask_constants(mask: MaskRule) -> dict[str, int | float]:
    """Return a mask rule's constants for compiling kernels; `first_seen` reads them."""
    return {"WINDOW": mask.size, "IN_CHUNKS": mask.kind is MaskKind.CHUNKED}


def score_constants(shape: AttentionShape) -> dict[str, int | float]:
    """Return the constants of a layer's scores for compiling kernels: mask rule and soft cap."""
    return {**mask_constants(shape.mask), "SOFTCAP": shape.softcap or 0.0}


@triton.jit
def head_elements(D: tl.constexpr, LANES: tl.constexpr):
    """The element of a head of D that each of LANES lanes holds: the first half's, then the
    second's, each half in as many lanes as the next power of two; see `real_elements`."""
    lane = tl.arange(0, LANES)
    # Each half padded by itself, so that a rotation's pairs stay LANES / 2 apart.
    if D != LANES:
        lane = tl.where(lane < LANES // 2, lane, lane - LANES // 2 + D // 2)
    return lane


@triton.jit
def real_elements(D: tl.constexpr, LANES: tl.constexpr):
    """Return a mask of the lanes that hold an element."""
    return tl.arange(0, LANES) % (LANES // 2) < D // 2


@triton.jit
def real_lanes(rows, D: tl.constexpr, LANES: tl.constexpr):
    """Return a mask [M, LANES] of the lanes that hold an element, in the real rows (`rows` [M])."""
    lanes = rows[:, None]
    # A head without padding needs no mask of its elements, and loads of it are whole vectors.
    if D != LANES:
        lanes = lanes & real_elements(D, LANES)[None, :]
    return lanes


@triton.jit
def first_seen(context, WINDOW: tl.constexpr, IN_CHUNKS: tl.constexpr):
    """Find the first token that the last of `context` tokens attends to."""
    # Llama 4: a token sees its own chunk; else a window slides with it.
    if IN_CHUNKS:
        return tl.maximum(context - 1, 0) // WINDOW * WINDOW
    else:
        return tl.maximum(context - WINDOW, 0)


@triton.jit
def add_sinks(sinks, running_max, running_sum, acc):
    """One more score per row, base 2, that has no value; -inf for none."""
    highest = tl.maximum(running_max, sinks)
    # A sink may be the highest: the sum so far is rescaled to it.
    kept = tl.exp2(running_max - highest)
    return highest, running_sum * kept + tl.exp2(sinks - highest), acc * kept[:, None]


@triton.jit
def load_sinks(sinks_ptr, head, real):
    """In base 2."""
    return tl.load(sinks_ptr + head, mask=real, other=0.0) * 1.4426950408889634


@triton.jit
def load_tile(at, inside, real, MASKED: tl.constexpr, PADDED: tl.constexpr):
    """Rows of heads at `at` [N, LANES]: those `inside` where MASKED, lanes that are `real` where a
    head is PADDED, zeros elsewhere."""
    # Four loads for the compiler to choose from: one that needs no mask is 16 bytes a thread.
    if MASKED and PADDED:
        return tl.load(at, mask=inside[:, None] & real[None, :], other=0.0)
    elif MASKED:
        return tl.load(at, mask=inside[:, None], other=0.0)
    elif PADDED:
        return tl.load(at, mask=real[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def load_blocks(
    table_ptr, first, low, end,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LOW: tl.constexpr,
):  # fmt: skip
    """Block ids of the BLOCK_N tokens from `first`; those past `end`, and with HAS_LOW those before
    `low`, get block 0.

    Loops carry the ids of their next tile: a key's address then depends on no load of its own
    iteration, and the compiler can keep several tiles of keys and values in flight.
    """
    token = first + tl.arange(0, BLOCK_N)
    inside = token < end
    if HAS_LOW:
        inside = inside & (token >= low)
    return tl.load(table_ptr + token // BLOCK_SIZE, mask=inside, other=0)


@triton.jit
def cache_offsets(
    block, first, head, element,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Offsets [BLOCK_N, LANES] of the tokens' heads in a cache [N, BLOCK_SIZE, HKV, D]."""
    # Each part by itself: of slots Triton 3.6 expects more alignment than their sum has.
    offset = (first + tl.arange(0, BLOCK_N)) % BLOCK_SIZE * (HKV * D)
    at = block.to(tl.int64) * (BLOCK_SIZE * HKV * D) + offset + head * D
    return at[:, None] + element[None, :]


@triton.jit
def load_scales(
    scales_ptr, block, first, head, inside,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HKV: tl.constexpr,
):  # fmt: skip
    """Scales [BLOCK_N] of the tokens' heads in a cache's scales [N, BLOCK_SIZE, HKV]."""
    # By slot, as keys are: a token's scales of all heads are contiguous.
    offset = (first + tl.arange(0, BLOCK_N)) % BLOCK_SIZE
    slot = block.to(tl.int64) * BLOCK_SIZE + offset
    return tl.load(scales_ptr + slot * HKV + head, mask=inside, other=0.0)


@triton.jit
def score_tile(
    q, cache, block, first, head, element, real, inside,
    HKV: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Score queries q [M, LANES] against the BLOCK_N cached tokens from `first` on → (scores [M,
    BLOCK_N] float32, still to be scaled; values [BLOCK_N, LANES] in q's dtype; their scales
    [BLOCK_N], 1 of a plain cache). cache: see launch.cache_pointers."""
    k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr = cache
    PADDED: tl.constexpr = q.shape[1] != D
    at = cache_offsets(block, first, head, element, BLOCK_SIZE, BLOCK_N, HKV, D)
    # Values are asked for before the product: both tiles are then on their way at once.
    key = load_tile(k_cache_ptr + at, inside, real, MASKED, PADDED).to(q.dtype)
    value = load_tile(v_cache_ptr + at, inside, real, MASKED, PADDED).to(q.dtype)
    value_scale = 1.0
    scores = tl.dot(q, tl.trans(key), input_precision="ieee")
    if k_scale_ptr is not None:
        # fp8 is an exact subset of bfloat16 and float16, so a head's scale may follow the product:
        # one multiplication for a score instead of one for each element of its key.
        key_scale = load_scales(k_scale_ptr, block, first, head, inside, BLOCK_SIZE, BLOCK_N, HKV)
        value_scale = load_scales(v_scale_ptr, block, first, head, inside, BLOCK_SIZE, BLOCK_N, HKV)
        scores = scores * key_scale[None, :]
    return scores, value, value_scale


@triton.jit
def head_scale(largest, LIMIT: tl.constexpr):
    """The scale of heads in fp8 by their largest magnitude."""
    return tl.where(largest > 0, largest / LIMIT, 1.0)


@triton.jit
def quantise_head(x, scale, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """x and its scale, float32 → fp8."""
    # Clamped first: beyond the largest, conversion gives NaN on cards that do not saturate.
    return tl.minimum(tl.maximum(x / scale, -LIMIT), LIMIT).to(dtype)


@triton.jit
def cap_scores(scores, scale, SOFTCAP: tl.constexpr):
    """Bound scores, still to be scaled by `scale` (which carries log2(e)), by a soft cap."""
    # tanh by one exponential: 1 - 2 / (1 + e^2x) is right for both infinities.
    if SOFTCAP > 0:
        wanted = scores * (scale * (0.6931471805599453 / SOFTCAP))
        scores = (1.0 - 2.0 / (1.0 + tl.exp(2.0 * wanted))) * (
            SOFTCAP / (scale * 0.6931471805599453)
        )
    return scores


@triton.jit
def begin_softmax(ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return maximum, sum and weighted values of a softmax of ROWS rows before their first step."""
    # Sums stay in float32 over however many tiles follow.
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    return highest, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, LANES], tl.float32)


@triton.jit
def softmax_step(
    scores, value, value_scale, scale, running_max, running_sum, acc,
    SPARSE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Fold scores [M, N], still to be scaled, and value [N, LANES] into the softmax of M rows. With
    FP8 a value is multiplied by its value_scale [N].

    Every row has at least one score above -inf by its first step, so that its maximum is finite;
    unless SPARSE says that rows may have none.
    """
    new_max = tl.maximum(running_max, tl.max(scores, axis=1) * scale)
    base = new_max
    if SPARSE:
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
    # exp2, not exp: the hardware's instruction, and log2(e) is in the scale already.
    shrink = tl.exp2(running_max - base)
    weights = tl.exp2(scores * scale - base[:, None])
    running_sum = running_sum * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    # The value's scale goes into its weight: [M, N] multiplications instead of [N, LANES]
    # conversions back.
    if FP8:
        weights = weights * value_scale[None, :]
    # Weights are rounded to the values' dtype, as FlashAttention does; sums stay in float32.
    acc = tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")
    return new_max, running_sum, acc
