# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A sum over ranks, the addition to the residual and the norm in one kernel: a program per row.

Each rank writes its share of a row into every other rank's buffer and waits for theirs in its own
(collectives/peer_buffers.py describes how a word marks its arrival). Shares are rounded to the
activations' dtype before they are sent and added up in float32 in the order of ranks, the rank's
own included: every rank computes the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.collectives.peer_buffers import PeerBuffers
from atom.model_ops.backends.triton_ops.launch import next_power_of_2, warps_for
from atom.model_ops.values import NormWeight


@triton.jit
def _words(x, PAIRED: tl.constexpr):
    """Map x [BLOCK] → its bits in the lower halves of int64; two of 16 bits a word."""
    # A word is 64 bits: 32 of data and 32 of the sum's number, which one store writes at once, so a
    # word that has the number has its data.
    if PAIRED:
        low, high = tl.split(tl.reshape(x.to(tl.int16, bitcast=True), (x.shape[0] // 2, 2)))
        bits = (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    else:
        bits = x.to(tl.int32, bitcast=True)
    return bits.to(tl.int64) & 0xFFFFFFFF


@triton.jit
def _numbers(words, dtype: tl.constexpr, PAIRED: tl.constexpr):
    """Convert the result of `_words` back to x, in float32."""
    bits = words.to(tl.int32)
    if PAIRED:
        pairs = tl.join(bits.to(tl.int16), (bits >> 16).to(tl.int16))
        x = tl.reshape(pairs, (2 * words.shape[0],)).to(dtype, bitcast=True)
    else:
        x = bits.to(dtype, bitcast=True)
    return x.to(tl.float32)


@triton.jit(do_not_specialize=["tokens"])
def _allreduce_norm_kernel(
    share_ptr, residual_ptr, weight_ptr, out_ptr, own_ptr, addresses_ptr, sums_ptr, tokens, eps,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PAIRED: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < HIDDEN
    dtype = out_ptr.dtype.element_ty
    LANES: tl.constexpr = BLOCK // 2 if PAIRED else BLOCK
    word = tl.arange(0, LANES)
    real = word < WORDS
    # Each row counts its sums; ranks make them in one order, so the numbers agree without a word.
    number = tl.load(sums_ptr + row) + 1
    # Two buffers in turn: a rank can be one sum ahead of another, not two, since it waits for the
    # other's share of the one between.
    place = (number & 1) * RANKS
    share = tl.load(share_ptr + row * HIDDEN + at, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        skipped = part * tokens.to(tl.int64) * HIDDEN
        share += tl.load(share_ptr + skipped + row * HIDDEN + at, mask=inside, other=0.0)
    share = share.to(dtype)
    stamp = number.to(tl.int64) << 32
    message = _words(share, PAIRED) | stamp
    for rank in tl.static_range(RANKS):
        if rank != RANK:
            buffer = tl.load(addresses_ptr + rank).to(tl.pointer_type(tl.int64))
            theirs = buffer + ((place + RANK) * ROWS + row) * WORDS
            # Write-through: a share that stays in this card's cache is never seen by the rank that
            # waits.
            tl.store(theirs + word, message, mask=real, cache_modifier=".wt")
    # While the shares are on their way.
    residual = tl.load(residual_ptr + row * HIDDEN + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    # In the order of ranks on every rank: float32 sums of another order would differ, and with them
    # the tokens that ranks sample.
    total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(RANKS):
        if rank == RANK:
            total += share.to(tl.float32)
        else:
            ours = own_ptr + ((place + rank) * ROWS + row) * WORDS
            # Volatile: otherwise the compiler may read once and spin on a register.
            came = tl.load(ours + word, mask=real, other=stamp, volatile=True)
            while tl.min(came >> 32, axis=0) != number:
                came = tl.load(ours + word, mask=real, other=stamp, volatile=True)
            total += _numbers(came, dtype, PAIRED)
    # From here on as norms.py: the sum is rounded once, as a collective in the model's dtype would.
    x = (total.to(dtype).to(tl.float32) + residual).to(dtype)
    tl.store(residual_ptr + row * HIDDEN + at, x, mask=inside)
    wide = x.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=0) / HIDDEN
    normed = (wide * tl.rsqrt(mean_square + eps)).to(dtype)
    result = (weight * normed.to(tl.float32)).to(dtype)
    tl.store(out_ptr + row * HIDDEN + at, result, mask=inside)
    # Last, when every read of this sum's shares is done.
    tl.store(sums_ptr + row, number)


def allreduce_norm(
    share: torch.Tensor, residual: torch.Tensor, norm: NormWeight, peers: PeerBuffers
) -> torch.Tensor:
    """Map share [T, H] or its parts [parts, T, H] float32; residual [T, H] becomes the sum → its
    norm, [T, H]."""
    share = share.contiguous()
    rows, hidden = residual.shape
    out = torch.empty_like(residual)
    block = next_power_of_2(hidden)
    _allreduce_norm_kernel[(rows,)](
        share, residual, norm.weight, out, peers.own, peers.addresses, peers.sums, rows, norm.eps,
        HIDDEN=hidden, BLOCK=block, PARTS=share.shape[0] if share.dim() == 3 else 1,
        PAIRED=residual.element_size() == 2, RANK=peers.rank, RANKS=peers.size, ROWS=peers.rows,
        WORDS=peers.words, num_warps=warps_for(block, 256, most=16),
    )  # fmt: skip
    return out
