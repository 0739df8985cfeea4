# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Top-k, top-p and min-p without sorting: the least logit that each row keeps, then a mask.

A first kernel finds the highest logit and the weight of every group of tokens. A second, one
program per row, takes the groups with the highest maxima (they contain every token above the
highest remaining maximum). In these it finds, in registers, the k-th highest logit and the smallest
set of top-p: a number is found bit by bit, from the highest, by counting the logits, or their
weight, that reach it. Only if these groups do not suffice (a flat distribution, a large k) is the
whole row counted. A third kernel masks the rows that have limits.

The kernels do not depend on the host's values of the limits, so a captured graph serves any.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import LogitFilters
from atom.model_ops.backends.noise import GROUP, LN2
from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.backends.triton_ops.ordered_keys import ordered_key

_GROUP = tl.constexpr(GROUP)
_LOG2E = tl.constexpr(1 / LN2)
# Bits of a key that distinguish two logits: the others are all zeros, or all ones below zero.
_BITS = {torch.bfloat16: 16, torch.float16: 19, torch.float32: 32}
# Groups that are looked into: as many as one program's registers hold without effort.
CANDIDATES = 64
_CHUNK = 2048  # logits of a program that takes a chunk of a row
_PASS = 16384  # logits that a pass over the whole row takes at once


@triton.jit
def _value(key):
    """The float of a key; of 0, which is no float's, -inf."""
    bits = tl.where(key >> 31 == 1, key & 0x7FFFFFFF, ~key)
    return tl.where(key == 0, float("-inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def _completed(key, BITS: tl.constexpr):
    """Complete a key of which only the first bits were found; 0 remains the key of no logit."""
    rest: tl.constexpr = (1 << (32 - BITS)) - 1
    return tl.where((key > 0) & (key >> 31 == 0), key | rest, key)


@triton.jit
def _highest_reaching(keys, amounts, wanted, BITS: tl.constexpr):
    """The highest key c for which the amounts of all keys >= c are `wanted` or more; 0 if none."""
    found = tl.full([], 0, tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    # Bit by bit from the highest, all of it in registers: a sort of the candidates would be log²
    # passes.
    for _ in range(BITS):
        tried = found | bit
        bit = bit >> 1
        amount = tl.sum(tl.where(keys >= tried, amounts, 0.0))
        found = tl.where(amount >= wanted, tried, found)
    return _completed(found, BITS)


@triton.jit
def _amount_in_row(
    row_ptr, reached, least, highest, rate, VOCAB, WEIGHED: tl.constexpr, PASS: tl.constexpr
):
    """Count the logits of the row, or sum their weight, with keys >= both `reached` and `least`."""
    amounts = tl.zeros([PASS], tl.float32)
    # The slow way, over the row in memory; taken where candidates do not suffice, a top-p on a flat
    # distribution.
    for start in range(0, VOCAB, PASS):
        token = start + tl.arange(0, PASS)
        x = tl.load(row_ptr + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
        key = ordered_key(x)
        inside = (key >= reached) & (key >= least) & (token < VOCAB)
        if WEIGHED:
            amounts += tl.where(inside, tl.exp2((x - highest) * rate), 0.0)
        else:
            amounts += tl.where(inside, 1.0, 0.0)
    return tl.sum(amounts)


@triton.jit
def _highest_reaching_in_row(
    row_ptr, wanted, least, highest, rate, VOCAB,
    WEIGHED: tl.constexpr, BITS: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """`_highest_reaching` over the whole row, of tokens whose key is `least` or more."""
    found = tl.full([], 0, tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    for _ in range(BITS):
        tried = found | bit
        bit = bit >> 1
        amount = _amount_in_row(row_ptr, tried, least, highest, rate, VOCAB, WEIGHED, PASS)
        found = tl.where(amount >= wanted, tried, found)
    return _completed(found, BITS)


@triton.jit
def _is_limited(row, top_k_ptr, top_p_ptr, min_p_ptr, VOCAB):
    # A row without limits costs three loads; its logits are not read.
    few = tl.load(top_k_ptr + row) < VOCAB
    return few | (tl.load(top_p_ptr + row) < 1) | (tl.load(min_p_ptr + row) > 0)


# A row's limits are one number of each column, wherever the column begins.
_COLUMNS = ["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"]


@triton.jit(do_not_specialize=["VOCAB"], do_not_specialize_on_alignment=_COLUMNS)
def _groups_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, highest_ptr, mass_ptr,
    VOCAB, GROUPS, CHUNK: tl.constexpr,
):  # fmt: skip
    """The highest logit of each group, and the group's weight relative to it."""
    row = tl.program_id(0)
    if _is_limited(row, top_k_ptr, top_p_ptr, min_p_ptr, VOCAB):
        group = tl.program_id(1) * (CHUNK // _GROUP) + tl.arange(0, CHUNK // _GROUP)
        token = group[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        at = logits_ptr + row.to(tl.int64) * VOCAB + token
        logit = tl.load(at, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
        # A maximum a group of 64 tokens: the likeliest tokens are in few groups, found without
        # reading the row again.
        highest = tl.max(logit, axis=1)
        to = row.to(tl.int64) * GROUPS + group
        tl.store(highest_ptr + to, highest, mask=group < GROUPS)
        if tl.load(top_p_ptr + row) < 1:
            rate = _rate(tl.load(temperature_ptr + row))
            # A group of masked tokens alone has -inf: -inf - -inf would be NaN.
            finite = tl.maximum(highest, -1e30)[:, None]
            weight = tl.sum(tl.exp2((logit - finite) * rate), axis=1)
            tl.store(mass_ptr + to, weight, mask=group < GROUPS)


@triton.jit
def _rate(temperature):
    """Return the factor of a difference of logits, to base 2; a greedy row gets any, since its
    likeliest token is the same."""
    return _LOG2E / tl.where(temperature == 0, 1.0, temperature)


@triton.jit(do_not_specialize=["VOCAB"], do_not_specialize_on_alignment=_COLUMNS)
def _least_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, highest_ptr, mass_ptr,
    chosen_ptr, least_ptr, VOCAB, GROUPS,
    PADDED: tl.constexpr, CHOSEN: tl.constexpr, BITS: tl.constexpr, PASS: tl.constexpr,
):  # fmt: skip
    """Find the least logit that the row keeps, -inf without limits. `chosen`: scratch for the
    numbers of the examined groups."""
    row = tl.program_id(0)
    least_value = tl.full([], float("-inf"), tl.float32)
    if _is_limited(row, top_k_ptr, top_p_ptr, min_p_ptr, VOCAB):
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        temperature = tl.load(temperature_ptr + row)
        rate = _rate(temperature)
        row_ptr = logits_ptr + row.to(tl.int64) * VOCAB

        group = tl.arange(0, PADDED)
        at = row.to(tl.int64) * GROUPS + group
        maxima = tl.load(highest_ptr + at, mask=group < GROUPS, other=float("-inf"))
        highest = tl.max(maxima, axis=0)
        group_keys = tl.where(group < GROUPS, ordered_key(maxima), 0)
        # Every token above this is in a group whose maximum is: fewer than CHOSEN of them.
        floor = _highest_reaching(group_keys, tl.full([PADDED], 1.0, tl.float32), CHOSEN, BITS)
        above = group_keys > floor
        place = tl.cumsum(above.to(tl.int32), axis=0) - 1
        tl.store(chosen_ptr + row * CHOSEN + place, group, mask=above)
        # Stored by some threads and read by others of the program: between them they must meet.
        tl.debug_barrier()
        count = tl.sum(above.to(tl.int32), axis=0)
        index = tl.arange(0, CHOSEN)
        looked_into = tl.load(chosen_ptr + row * CHOSEN + index, mask=index < count, other=0)
        token = looked_into[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
        real = (index < count)[:, None] & (token < VOCAB)
        logit = tl.load(row_ptr + token, mask=real, other=float("-inf")).to(tl.float32)
        keys = tl.where(real, ordered_key(logit), 0)
        keys = tl.where(keys > floor, keys, 0)
        ones = tl.where(keys > 0, 1.0, 0.0)

        least = tl.full([], 0, tl.uint32)
        if top_k < VOCAB:
            # Enough candidates: the k-th is among them.
            if tl.sum(ones) >= top_k:
                least = _highest_reaching(keys, ones, top_k.to(tl.float32), BITS)
            else:
                least = _highest_reaching_in_row(
                    row_ptr, top_k.to(tl.float32), least, highest, rate, VOCAB, False, BITS, PASS
                )
        if top_p < 1:
            weights = tl.where(keys > 0, tl.exp2((logit - highest) * rate), 0.0)
            weights = tl.where(keys >= least, weights, 0.0)
            found = tl.sum(weights)
            if least > floor:
                total = found
            elif top_k < VOCAB:
                total = _amount_in_row(row_ptr, least, least, highest, rate, VOCAB, True, PASS)
            else:
                # The whole row's weight from the groups' own, each brought to the common maximum.
                masses = tl.load(mass_ptr + at, mask=group < GROUPS, other=0.0)
                total = tl.sum(masses * tl.exp2((tl.maximum(maxima, -1e30) - highest) * rate))
            if found >= top_p * total:
                nucleus = _highest_reaching(keys, weights, top_p * total, BITS)
            else:
                nucleus = _highest_reaching_in_row(
                    row_ptr, top_p * total, least, highest, rate, VOCAB, True, BITS, PASS
                )
            # The likeliest token stays whatever top-p is.
            least = tl.maximum(least, tl.minimum(nucleus, ordered_key(highest)))
        least_value = _value(least)
        if min_p > 0:
            # Base 2 on both sides: the rate holds log2(e).
            least_value = tl.maximum(least_value, highest + tl.log2(min_p) / rate)
    tl.store(least_ptr + row, least_value)


@triton.jit(do_not_specialize=["VOCAB"])
def _mask_kernel(logits_ptr, least_ptr, VOCAB, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    least = tl.load(least_ptr + row)
    # Rows without limits are left as they are, unread.
    if least > float("-inf"):
        token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        at = logits_ptr + row.to(tl.int64) * VOCAB + token
        logit = tl.load(at, mask=token < VOCAB, other=0.0).to(tl.float32)
        tl.store(at, float("-inf"), mask=(token < VOCAB) & (logit < least))


def filter_logits(logits: torch.Tensor, filters: LogitFilters) -> torch.Tensor:
    """See `Ops.filter_logits`; logits [R, V] contiguous, bfloat16, float16 or float32."""
    rows, vocab = logits.shape
    groups = triton.cdiv(vocab, GROUP)

    def scratch(columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((rows, columns), dtype=dtype, device=logits.device)

    highest, weight = scratch(groups, torch.float32), scratch(groups, torch.float32)
    chosen, least = scratch(CANDIDATES, torch.int32), scratch(1, torch.float32)
    asked = (filters.temperature, filters.top_k, filters.top_p, filters.min_p)
    chunks = triton.cdiv(vocab, _CHUNK)
    _groups_kernel[(rows, chunks)](
        logits, *asked, highest, weight, vocab, groups, CHUNK=_CHUNK, num_warps=1
    )
    _least_kernel[(rows,)](
        logits, *asked, highest, weight, chosen, least, vocab, groups,
        PADDED=max(CANDIDATES, next_power_of_2(groups)), CHOSEN=CANDIDATES,
        BITS=_BITS[logits.dtype], PASS=_PASS, num_warps=16,
    )  # fmt: skip
    _mask_kernel[(rows, chunks)](logits, least, vocab, CHUNK=_CHUNK, num_warps=2)
    return logits
