# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""A token's choice of experts, cheap enough for every program that multiplies with one of them.

Scores and experts are keys of one order, so a choice is one maximum; the next is the maximum of the
rest. The higher score comes first, the first of equal ones, as in routing.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.ordered_keys import ordered_key


@triton.jit
def expert_scores(
    logits_ptr, bias_ptr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, SIGMOID: tl.constexpr
):
    """One token's [PADDED] float32."""
    expert = tl.arange(0, PADDED)
    real = expert < EXPERTS
    logits = tl.load(logits_ptr + expert, mask=real, other=0.0)
    if bias_ptr is not None:
        logits += tl.load(bias_ptr + expert, mask=real, other=0.0).to(tl.float32)
    # Scores are independent of each other under a sigmoid; a softmax masks the padding first.
    if SIGMOID:
        return 1.0 / (1.0 + tl.exp(-logits))
    else:
        logits = tl.where(real, logits, -float("inf"))
        # Less the highest, so that no exponential overflows.
        scores = tl.exp(logits - tl.max(logits, axis=0))
        return scores / tl.sum(scores, axis=0)


@triton.jit
def choice_keys(scores, score_bias_ptr, EXPERTS: tl.constexpr, PADDED: tl.constexpr):
    """Map scores [PADDED] → int64 [PADDED], in the order of choice from the highest down; -1 for
    padding."""
    expert = tl.arange(0, PADDED)
    # e_score_correction_bias moves the choice alone: weights come from the plain scores.
    if score_bias_ptr is not None:
        scores += tl.load(score_bias_ptr + expert, mask=expert < EXPERTS, other=0.0)
    # 32 bits of score above 16 of the expert turned over: one maximum decides, and of equal scores
    # the first expert wins, as in routing.py.
    keys = (ordered_key(scores).to(tl.int64) << 16) | (PADDED - 1 - expert).to(tl.int64)
    return tl.where(expert < EXPERTS, keys, -1)


@triton.jit
def expert_of(key, PADDED: tl.constexpr):
    """Return the expert of a key; an existing one for any scores."""
    return (PADDED - 1 - (key & 0xFFFF)).to(tl.int32)


@triton.jit
def nth_choice(keys, number, PADDED: tl.constexpr):
    """Return the expert that is chosen after `number` others."""
    best = tl.max(keys, axis=0)
    # k is small: k maxima of one tile in registers cost less than a sort.
    for _ in range(number):
        keys = tl.where(keys == best, -1, keys)
        best = tl.max(keys, axis=0)
    return expert_of(best, PADDED)
