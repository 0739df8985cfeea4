# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sampling in one pass over the logits: each program scores a chunk of a row's vocabulary and
keeps its best group of tokens; a second kernel takes the best of the chunks and its token.

Greedy rows look for the highest logit. Others run the two exponential races of `noise.py`: programs
race the groups of their chunk, each weighed relative to its own highest logit so that no group
waits for another, and the second kernel races the tokens of the group that won. The lowest number
wins ties, as the first maximum does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import GROUP, LN2, SERIES, SPREAD, WITHIN_GROUP
from atom.model_ops.backends.triton_ops.launch import next_power_of_2

_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = (tl.constexpr(c) for c in SERIES)
_SPREAD = tl.constexpr(SPREAD)
_GROUP = tl.constexpr(GROUP)
_WITHIN_GROUP = tl.constexpr(WITHIN_GROUP)
_LN2 = tl.constexpr(LN2)
_LOG2E = tl.constexpr(1 / LN2)
_MANY_ROWS = 32
# (logits of a program, its warps). Few rows: many short chunks, so that the card is busy at all.
_FEW, _MANY = (1024, 1), (2048, 1)


@triton.jit
def _mix32(x):
    """The reference's 32-bit finaliser, in wrapping arithmetic."""
    # Two multiplications and three shifts: counter-based, so a draw needs no state and is the same
    # whatever rows are in the batch.
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _row_key(seed, position):
    # The seed's halves are mixed in turn: seeds that differ in their upper bits alone still give
    # other draws.
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return _mix32(_mix32(low ^ _mix32(high)) ^ (position & 0xFFFFFFFF).to(tl.uint32))


@triton.jit
def _exponential_noise(key, number):
    bits = _mix32(number.to(tl.uint32) * _SPREAD ^ key)
    # Half a step off 0: a logarithm of 0 would be infinite.
    v = bits.to(tl.float32) * (2.0**-32) + (2.0**-33)
    rest_bits = tl.maximum(1.0 - v, 2.0**-25).to(tl.int32, bitcast=True)
    halved = ((rest_bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    is_small = v < 0.5
    halvings = tl.where(is_small, 0, 126 - (rest_bits >> 23))
    t = tl.where(is_small, v, 1.0 - halved)
    # A polynomial and the exponent's bits instead of the card's log: every card, and the CPU's
    # oracle, draws the same token.
    series = _C6 + t * _C7
    series = _C4 + t * (_C5 + t * series)
    series = _C2 + t * (_C3 + t * series)
    series = _C0 + t * (_C1 + t * series)
    return series * t + halvings.to(tl.float32) * _LN2


@triton.jit
def _weight(logit, highest, rate):
    """Compute exp((logit - highest) · rate), 0 if all logits are -inf."""
    # The floor keeps a group of -inf alone from -inf - -inf, which is NaN.
    return tl.exp2((logit - tl.maximum(highest, -1e30)) * (rate * _LOG2E))


@triton.jit
def _score_kernel(
    logits_ptr, temperature_ptr, seed_ptr, position_ptr, best_ptr, group_ptr, row_stride,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, FIRST_GROUP: tl.constexpr,
):  # fmt: skip
    """Write the best score of a group of the chunk, and the group's local number; noise counts
    groups from FIRST_GROUP. Scores are logarithms: to base 2 for a sampled row."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    group = chunk * (CHUNK // _GROUP) + tl.arange(0, CHUNK // _GROUP)
    token = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    at = logits_ptr + row.to(tl.int64) * row_stride + token
    logit = tl.load(at, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    # Greedy rows need no more than the highest logit; drawn ones race in logarithms, which cannot
    # overflow.
    score = tl.max(logit, axis=1)
    if temperature != 0:
        rate = tl.div_rn(1.0, temperature)
        key = _row_key(tl.load(seed_ptr + row), tl.load(position_ptr + row))
        # Relative to the group's own highest: no pass over the row for a common maximum.
        weight = tl.sum(_weight(logit, score[:, None], rate), axis=1)
        score = score * (rate * _LOG2E) + tl.log2(
            weight / _exponential_noise(key, group + FIRST_GROUP)
        )
    best = tl.max(score, axis=0)
    # The first of equal groups, as the reference's argmax.
    chosen = tl.min(tl.where(score == best, group, VOCAB), axis=0)
    tl.store(best_ptr + row * CHUNKS + chunk, best)
    tl.store(group_ptr + row * CHUNKS + chunk, chosen)


@triton.jit
def _pick_kernel(
    logits_ptr, temperature_ptr, seed_ptr, position_ptr, best_ptr, group_ptr, out_ptr, score_ptr,
    row_stride,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, FIRST_GROUP: tl.constexpr,
):  # fmt: skip
    """The winner among the best group's tokens, a number of the whole vocabulary; its score too
    unless score_ptr is None."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * CHUNKS + at, mask=at < CHUNKS, other=float("-inf"))
    chosen = tl.load(group_ptr + row * CHUNKS + at, mask=at < CHUNKS, other=VOCAB)
    highest = tl.max(best, axis=0)
    group = tl.min(tl.where(best == highest, chosen, VOCAB), axis=0)
    # One group of the row is read again, not the row.
    token = group * _GROUP + tl.arange(0, _GROUP)
    at_logit = logits_ptr + row.to(tl.int64) * row_stride + token
    score = tl.load(at_logit, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    if temperature != 0:
        # Rounded to nearest: an approximate quotient differs between cards, and with it the draw.
        rate = tl.div_rn(1.0, temperature)
        # Another key than the groups' race: both noises must be independent.
        key = _row_key(tl.load(seed_ptr + row), tl.load(position_ptr + row)) ^ _WITHIN_GROUP
        noise = _exponential_noise(key, token + FIRST_GROUP * _GROUP)
        score = _weight(score, tl.max(score, axis=0), rate) / noise
    winner = tl.min(tl.where(score == tl.max(score, axis=0), token, VOCAB), axis=0)
    first = FIRST_GROUP * _GROUP
    # One that exists even if all logits are NaN.
    tl.store(out_ptr + row, tl.minimum(winner, VOCAB - 1).to(tl.int64) + first)
    if score_ptr is not None:
        tl.store(score_ptr + row, highest)


def sample(
    logits: torch.Tensor, sampling: SamplingTensors, *, in_one_order: bool = False
) -> torch.Tensor:
    """Sample tokens. in_one_order: the order of sums does not depend on the number of rows."""
    return _sample(logits, 0, sampling, None, few_rows=in_one_order or len(logits) < _MANY_ROWS)


def sample_vocab_shard(
    logits: torch.Tensor, first: int, sampling: SamplingTensors
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    # Of a chunk that splits a group rows are greedy, and look for no noise.
    few_rows = len(logits) < _MANY_ROWS
    tokens = _sample(logits, first // GROUP, sampling, scores, few_rows=few_rows)
    return tokens + first % GROUP, scores


def _sample(
    logits: torch.Tensor,
    first_group: int,
    sampling: SamplingTensors,
    scores: torch.Tensor | None,
    *,
    few_rows: bool,
) -> torch.Tensor:
    rows, vocab = logits.shape
    chunk, warps = _FEW if few_rows else _MANY
    chunks = triton.cdiv(vocab, chunk)
    best = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    group = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _score_kernel[(rows, chunks)](
        logits, sampling.temperature, sampling.seed, sampling.position, best, group,
        logits.stride(0), VOCAB=vocab, CHUNK=chunk, CHUNKS=chunks,
        FIRST_GROUP=first_group, num_warps=warps,
    )  # fmt: skip
    _pick_kernel[(rows,)](
        logits, sampling.temperature, sampling.seed, sampling.position, best, group, out,
        scores, logits.stride(0), VOCAB=vocab, CHUNKS=chunks,
        BLOCK=next_power_of_2(chunks), FIRST_GROUP=first_group, num_warps=1,
    )  # fmt: skip
    return out
