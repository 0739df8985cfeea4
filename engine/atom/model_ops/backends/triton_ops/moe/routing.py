# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Routing: every expert's logit by one kernel, the choice among them by another.

Logits stay in float32 for any dtype of the model: with half precision, rounding would decide
between experts. With few tokens the product is split over its inner dimension, since it has too few
tiles to occupy a card, and the choice adds up the parts. A token's experts are found one after the
other, without a sort.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.triton_ops.launch import next_power_of_2
from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.values import LinearWeight, RouterWeight

_FEW_TOKENS = 64  # to which tiles are of few tokens
_SPLIT_TOKENS = 256  # to which a product is split
_PARTS = 16
_FEW_BLOCK, _MANY_BLOCK = 16, 64  # tokens of a tile
_BLOCK_E, _BLOCK_K = 32, 128


@triton.jit(do_not_specialize=["tokens"])
def _logits_kernel(
    x_ptr, w_ptr, parts_ptr, tokens, E, K, slice,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(2)
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    end = tl.minimum((part + 1) * slice, K)
    x_rows = x_ptr + t.to(tl.int64)[:, None] * K
    w_rows = w_ptr + e[:, None] * K
    # float32 parts of a split K: with few tokens there are too few tiles to fill a card otherwise.
    acc = tl.zeros([BLOCK_T, BLOCK_E], tl.float32)
    for start in range(part * slice, end, BLOCK_K):
        k = (start + tl.arange(0, BLOCK_K))[None, :]
        x = tl.load(x_rows + k, mask=(t < tokens)[:, None] & (k < end), other=0.0)
        w = tl.load(w_rows + k, mask=(e < E)[:, None] & (k < end), other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    at = parts_ptr + (part * tokens.to(tl.int64) + t)[:, None] * E + e[None, :]
    tl.store(at, acc, mask=(t < tokens)[:, None] & (e < E)[None, :])


@triton.jit
def _best_groups(
    scores, GROUPS_KEPT: tl.constexpr, GROUP_TOP: tl.constexpr,
    GROUPS_PADDED: tl.constexpr, SIZE_PADDED: tl.constexpr,
):  # fmt: skip
    """scores [groups, size] with -inf in all but the best groups."""
    group_scores = tl.max(scores, axis=1)
    # DeepSeek-V3 rates a group by the sum of its two best, V2 by its best.
    if GROUP_TOP == 2:
        first = tl.argmax(scores, axis=1)
        others = tl.where(
            tl.arange(0, SIZE_PADDED)[None, :] == first[:, None], -float("inf"), scores
        )
        group_scores += tl.max(others, axis=1)
    number = tl.arange(0, GROUPS_PADDED)
    kept = number < 0
    # argmax takes the first of equal groups, as the reference does.
    for _ in tl.static_range(GROUPS_KEPT):
        best = tl.argmax(group_scores, axis=0)
        kept = kept | (number == best)
        group_scores = tl.where(number == best, -float("inf"), group_scores)
    return tl.where(kept[:, None], scores, -float("inf"))


@triton.jit(do_not_specialize=["tokens"])
def _choose_kernel(
    parts_ptr, bias_ptr, score_bias_ptr, chosen_ptr, weights_ptr, tokens,
    PARTS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    GROUPS_PADDED: tl.constexpr, SIZE_PADDED: tl.constexpr,
    GROUPS_KEPT: tl.constexpr, GROUP_TOP: tl.constexpr,
    TOP_K: tl.constexpr, TOP_K_PADDED: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """One token; its experts as [GROUPS, SIZE], padded."""
    EXPERTS: tl.constexpr = GROUPS * SIZE
    token = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS_PADDED)[:, None], tl.arange(0, SIZE_PADDED)[None, :]
    real = (group < GROUPS) & (member < SIZE)
    expert = group * SIZE + member
    logits = tl.load(parts_ptr + token * EXPERTS + expert, mask=real, other=0.0)
    # In the order of parts: the choice does not depend on what else is in the step.
    for part in tl.static_range(1, PARTS):
        at = parts_ptr + (part * tokens.to(tl.int64) + token) * EXPERTS + expert
        logits += tl.load(at, mask=real, other=0.0)
    if bias_ptr is not None:
        logits += tl.load(bias_ptr + expert, mask=real, other=0.0).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        logits = tl.where(real, logits, -float("inf"))
        scores = tl.exp(logits - tl.max(tl.max(logits, axis=1), axis=0))
        scores = scores / tl.sum(tl.sum(scores, axis=1), axis=0)
    choosable = scores
    # For choosing alone; weights are of the plain scores (DeepSeek-V3's e_score_correction_bias).
    if score_bias_ptr is not None:
        choosable += tl.load(score_bias_ptr + expert, mask=real, other=0.0)
    choosable = tl.where(real, choosable, -float("inf"))
    if GROUPS_KEPT < GROUPS:
        choosable = _best_groups(choosable, GROUPS_KEPT, GROUP_TOP, GROUPS_PADDED, SIZE_PADDED)
    choice = tl.arange(0, TOP_K_PADDED)
    ids = tl.zeros([TOP_K_PADDED], tl.int32)
    weights = tl.zeros([TOP_K_PADDED], tl.float32)
    for number in tl.static_range(TOP_K):
        best = tl.max(tl.max(choosable, axis=1), axis=0)
        # The first of equals; an existing one for any scores.
        at = tl.where(real & (choosable == best), expert, EXPERTS - 1)
        chosen = tl.min(tl.min(at, axis=1), axis=0)
        is_chosen = real & (expert == chosen)
        weight = tl.sum(tl.sum(tl.where(is_chosen, scores, 0.0), axis=1), axis=0)
        ids = tl.where(choice == number, chosen, ids)
        weights = tl.where(choice == number, weight, weights)
        choosable = tl.where(is_chosen, -float("inf"), choosable)
    # As in DeepSeek's code; keeps 0 / 0 out.
    if RENORMALIZE:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    at = token * TOP_K + choice
    tl.store(chosen_ptr + at, ids, mask=choice < TOP_K)
    tl.store(weights_ptr + at, weights * SCALE, mask=choice < TOP_K)


def route(x: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
    return choose(_logits(x, w.matrix), w, routing)


def choose(parts: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
    """Choose experts from parts [S, T, E] float32, whose sum over S is the logits without bias."""
    tokens, experts, top_k = parts.shape[1], w.matrix.outputs, routing.top_k
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=parts.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=parts.device)
    groups = routing.groups if routing.is_grouped else 1
    size = experts // groups
    _choose_kernel[(tokens,)](
        parts, w.matrix.bias, w.e_score_correction_bias, ids, weights, tokens,
        PARTS=parts.shape[0], GROUPS=groups, SIZE=size, GROUPS_PADDED=next_power_of_2(groups),
        SIZE_PADDED=next_power_of_2(size), GROUPS_KEPT=routing.groups_kept if groups > 1 else 1,
        GROUP_TOP=min(routing.group_top, size), TOP_K=top_k, TOP_K_PADDED=next_power_of_2(top_k),
        SIGMOID=routing.scoring is Scoring.SIGMOID, RENORMALIZE=routing.renormalize,
        SCALE=routing.scale, num_warps=1 if experts <= 256 else 4,
    )  # fmt: skip
    return Routed(ids, weights)


def _logits(x: torch.Tensor, w: LinearWeight) -> torch.Tensor:
    """Compute [S, T, E] float32, whose sum over S is the logits without bias."""
    tokens, inner = x.shape
    split = _PARTS if tokens <= _SPLIT_TOKENS else 1
    slice_ = triton.cdiv(triton.cdiv(inner, split), _BLOCK_K) * _BLOCK_K
    split = triton.cdiv(inner, slice_)
    parts = torch.empty((split, tokens, w.outputs), dtype=torch.float32, device=x.device)
    block_t = _FEW_BLOCK if tokens <= _FEW_TOKENS else _MANY_BLOCK
    grid = (triton.cdiv(tokens, block_t), triton.cdiv(w.outputs, _BLOCK_E), split)
    _logits_kernel[grid](
        x, w.data, parts, tokens, w.outputs, inner, slice_,
        BLOCK_T=block_t, BLOCK_E=_BLOCK_E, BLOCK_K=_BLOCK_K, num_warps=4, num_stages=2,
    )  # fmt: skip
    return parts
