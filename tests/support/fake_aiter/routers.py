"""Routers: top-k of softmaxes, of groups, and of sigmoids with a correction."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks


def _check(
    checks: Checks, gating_output: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> int:
    """How many experts are chosen."""
    checks.tensor("gating_output", gating_output, [*HALF, torch.float32], (None, None))
    checks.tensor("topk_weights", weights, [torch.float32], (len(gating_output), None))
    checks.tensor("topk_ids", ids, [torch.int32], weights.shape)
    return weights.shape[1]


def _best_groups(scores: torch.Tensor, groups: int, kept: int, top: int) -> torch.Tensor:
    """Scores [T, E], -inf outside the groups whose `top` best sum to the most."""
    if groups == kept:
        return scores
    apart = scores.unflatten(1, (groups, -1))
    best = apart.topk(top, dim=2).values.sum(2).topk(kept, dim=1).indices
    mask = torch.ones(apart.shape[:2], dtype=torch.bool).scatter_(1, best, False)
    return apart.masked_fill(mask.unsqueeze(2), -torch.inf).flatten(1)


def _write(
    weights: torch.Tensor, ids: torch.Tensor, chosen: torch.Tensor, scores: torch.Tensor,
    need_renorm: bool, factor: float = 1.0,
) -> None:  # fmt: skip
    found = scores.gather(1, chosen)
    if need_renorm:
        found = found / found.sum(1, keepdim=True)
    weights.copy_(found * factor)
    ids.copy_(chosen)


def _topk_softmax(
    checks: Checks,
    topk_weights: torch.Tensor,
    topk_indices: torch.Tensor,
    token_expert_indices: torch.Tensor,
    gating_output: torch.Tensor,
    need_renorm: bool,
    num_shared_experts: int = 0,
    shared_expert_scoring_func: str = "",
) -> None:
    count = _check(checks, gating_output, topk_weights, topk_indices)
    checks.tensor("token_expert_indices", token_expert_indices, [torch.int32], topk_indices.shape)
    checks.that(num_shared_experts == 0, "the double has no shared experts")
    token_expert_indices.fill_(-1)
    scores = gating_output.float().softmax(dim=1)
    chosen = scores.topk(count, dim=1).indices
    _write(topk_weights, topk_indices, chosen, scores, need_renorm)


def _grouped_topk(
    checks: Checks,
    gating_output: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    is_softmax: bool,
    routed_scaling_factor: float,
) -> None:
    count = _check(checks, gating_output, topk_weights, topk_ids)
    checks.that(gating_output.shape[1] % num_expert_group == 0, "groups are equal")
    wide = gating_output.float()
    scores = wide.softmax(dim=1) if is_softmax else wide.sigmoid()
    chosen = _best_groups(scores, num_expert_group, topk_group, 1).topk(count, dim=1).indices
    _write(topk_weights, topk_ids, chosen, scores, need_renorm, routed_scaling_factor)


def _biased_grouped_topk(
    checks: Checks,
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    routed_scaling_factor: float,
) -> None:
    count = _check(checks, gating_output, topk_weights, topk_ids)
    experts = gating_output.shape[1]
    checks.tensor("correction_bias", correction_bias, [gating_output.dtype], (experts,))
    checks.that(experts % num_expert_group == 0, "groups are equal")
    # Beyond 212 tokens per compute unit another kernel runs, which cannot do without.
    checks.that(need_renorm, "weights that do not sum to one are for few tokens alone")
    scores = gating_output.float().sigmoid()
    choosable = scores + correction_bias.float()
    best = _best_groups(choosable, num_expert_group, topk_group, 2)
    chosen = best.topk(count, dim=1).indices
    _write(topk_weights, topk_ids, chosen, scores, need_renorm, routed_scaling_factor)


RESULTS: dict[str, Any] = {
    "topk_softmax": _topk_softmax,
    "grouped_topk": _grouped_topk,
    "biased_grouped_topk": _biased_grouped_topk,
}
