# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Short convolutions by channel, over a row's tokens and the tail of those before them.

Shapes: x [T, C] (rows of a wider tensor, channels contiguous), taps [C, W], bias [C], tails [slots,
C, W - 1] float32. Tiles: one program has a row's TOKENS tokens and BLOCK channels, so a decode is
one tile of one token. Bound: memory, each input is read W times, W - 1 of them from cache. A
separate kernel advances the tails afterwards, since programs of other tokens still read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.linear_attention import ConvWeight
from atom.utils.forward_context import AttentionMetaData

_CHANNELS = 256  # of a program
_TOKENS = 8  # of a program, if a row has several


@triton.jit
def row_of(starts_ptr, contexts_ptr, slots_ptr, padding_slot, row):
    """First token, tokens and slot of a row, and how many tokens are before."""
    first = tl.load(starts_ptr + row)
    count = tl.load(starts_ptr + row + 1) - first
    slot = tl.load(slots_ptr + row)
    # A captured step's padding names no slot: it works on the one that no sequence has.
    slot = tl.where(slot < 0, padding_slot, slot).to(tl.int64)
    # The host of a captured step does not know who begins: a row whose context is all here does.
    return first.to(tl.int64), count, slot, tl.load(contexts_ptr + row) - count


@triton.jit(do_not_specialize=["x_stride", "padding_slot"])
def _convolve_kernel(
    x_ptr, weight_ptr, bias_ptr, tails_ptr, out_ptr, starts_ptr, contexts_ptr, slots_ptr,
    x_stride, padding_slot,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    SILU: tl.constexpr,
):  # fmt: skip
    first, count, slot, before = row_of(
        starts_ptr, contexts_ptr, slots_ptr, padding_slot, tl.program_id(0)
    )
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)[:, None]
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[None, :]
    within = (token < count) & (channel < CHANNELS)
    tail = tails_ptr + (slot * CHANNELS + channel) * (WIDTH - 1)
    mixed = tl.zeros([TOKENS, BLOCK], dtype=tl.float32)
    if bias_ptr is not None:
        mixed += tl.load(bias_ptr + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    for back in tl.static_range(WIDTH):
        # From the oldest visible one: tokens before the row's first token here are in its tail.
        at = token - (WIDTH - 1) + back
        here, earlier = within & (at >= 0), within & (at < 0) & (at >= -before)
        seen = tl.load(x_ptr + (first + at) * x_stride + channel, mask=here, other=0.0)
        kept = tl.load(tail + (WIDTH - 1) + at, mask=earlier, other=0.0)
        weight = tl.load(weight_ptr + channel * WIDTH + back, mask=channel < CHANNELS, other=0.0)
        mixed += weight.to(tl.float32) * (seen.to(tl.float32) + kept)
    if SILU:  # x / (1 + e^-x) is -0 far below 0, never NaN
        mixed = mixed / (1.0 + tl.exp(-mixed))
    activated = mixed.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (first + token) * CHANNELS + channel, activated, mask=within)


@triton.jit(do_not_specialize=["x_stride", "padding_slot"])
def _tails_kernel(
    x_ptr, tails_ptr, kept_ptr, starts_ptr, contexts_ptr, slots_ptr, x_stride, padding_slot,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """LANES: of a channel's tail."""
    first, count, slot, before = row_of(
        starts_ptr, contexts_ptr, slots_ptr, padding_slot, tl.program_id(0)
    )
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    if kept_ptr is not None:  # the drafts after them may be rejected
        count = tl.load(kept_ptr + tl.program_id(0))
    # A captured step's rows without tokens leave their slots as they are.
    within = (channel < CHANNELS) & (lane < tl.where(count > 0, WIDTH - 1, 0))
    at = count - (WIDTH - 1) + lane
    tail = tails_ptr + (slot * CHANNELS + channel) * (WIDTH - 1)
    seen = tl.load(x_ptr + (first + at) * x_stride + channel, mask=within & (at >= 0), other=0.0)
    kept = tl.load(tail + (WIDTH - 1) + at, mask=within & (at < 0) & (at >= -before), other=0.0)
    # Another thread may still have to read the values that this one moves.
    tl.debug_barrier()
    tl.store(tail + lane, seen.to(tl.float32) + kept, mask=within)


def short_convolution(
    x: torch.Tensor, weight: ConvWeight, tails: torch.Tensor, step: AttentionMetaData
) -> torch.Tensor:
    assert step.slots is not None
    channels, width = weight.taps.shape
    rows, padding = len(step.slots), len(tails) - 1
    out = torch.empty((x.shape[0], channels), dtype=x.dtype, device=x.device)
    place = step.query_starts, step.context_lens, step.slots, x.stride(0), padding
    tokens = 1 if step.max_query_len == 1 else _TOKENS
    blocks, tiles = triton.cdiv(channels, _CHANNELS), triton.cdiv(step.max_query_len, tokens)
    _convolve_kernel[(rows, tiles, blocks)](
        x, weight.taps, weight.bias, tails, out, *place,
        CHANNELS=channels, WIDTH=width, TOKENS=tokens, BLOCK=_CHANNELS, SILU=weight.has_silu,
        num_warps=4,
    )  # fmt: skip
    _tails_kernel[(rows, blocks)](
        x, tails, step.num_kept, *place,
        CHANNELS=channels, WIDTH=width, LANES=next_power_of_2(width - 1), BLOCK=_CHANNELS,
        num_warps=4,
    )  # fmt: skip
    return out
