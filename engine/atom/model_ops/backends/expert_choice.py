"""Choosing a token's experts by their logits, in plain PyTorch: for the reference and the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.values import LinearWeight, RouterWeight

_LEAST_SUM = 1e-20  # of sigmoids that are all 0


def router(
    linear: Callable[[torch.Tensor, LinearWeight], torch.Tensor],
) -> Callable[[torch.Tensor, RouterWeight, Routing], Routed]:
    """Build `Ops.route` over a backend's product, which is used if it gives float32."""

    def route(x: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
        if x.dtype is torch.float32:
            return choose(linear(x, w.matrix), w.e_score_correction_bias, routing)
        return choose(wide_logits(x, w), w.e_score_correction_bias, routing)

    return route


def wide_logits(x: torch.Tensor, w: RouterWeight) -> torch.Tensor:
    """Compute the router's logits [T, E] in float32, for any dtype of the model."""
    logits = x.float() @ w.matrix.data.float().t()
    return logits if w.matrix.bias is None else logits + w.matrix.bias.float()


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute 1 / (1 + e^-x) of each element by itself: torch's own takes another function for the
    last ones of a tensor, and so gives them other bits."""
    return 1.0 / (1.0 + torch.exp(-x))


def choose(
    logits: torch.Tensor,
    e_score_correction_bias: torch.Tensor | None,
    routing: Routing,
    total: Callable[[torch.Tensor, int], torch.Tensor] = torch.sum,
) -> Routed:
    """Choose experts by logits [T, E] float32 and e_score_correction_bias [E]. total: adds up along
    a dimension."""
    scores = _scores(logits, routing, total)
    choosable = scores if e_score_correction_bias is None else scores + e_score_correction_bias
    if routing.is_grouped:
        choosable = _of_best_groups(choosable, routing, total)
    ids = choosable.topk(routing.top_k, dim=-1).indices
    return _weighed(scores, ids, routing, total)


def weigh(
    logits: torch.Tensor,
    ids: torch.Tensor,
    routing: Routing,
    total: Callable[[torch.Tensor, int], torch.Tensor] = torch.sum,
) -> Routed:
    """Weigh experts ids [T, k] int64 that are chosen already by logits [T, E] float32."""
    return _weighed(_scores(logits, routing, total), ids, routing, total)


def _scores(
    logits: torch.Tensor, routing: Routing, total: Callable[[torch.Tensor, int], torch.Tensor]
) -> torch.Tensor:
    if routing.scoring is Scoring.SIGMOID:
        return sigmoid(logits)
    if routing.scoring is Scoring.SQRT_SOFTPLUS:
        return F.softplus(logits).sqrt()
    # Not torch's own, which starts its threads for however few numbers.
    scores = (logits - logits.amax(dim=-1, keepdim=True)).exp_()
    return scores.div_(total(scores, -1).unsqueeze(-1))


def _weighed(
    scores: torch.Tensor,
    ids: torch.Tensor,
    routing: Routing,
    total: Callable[[torch.Tensor, int], torch.Tensor],
) -> Routed:
    weights = scores.gather(1, ids)
    if routing.renormalize:
        weights = weights / (total(weights, -1).unsqueeze(-1) + _LEAST_SUM)
    return Routed(ids.to(torch.int32), weights * routing.scale)


def _of_best_groups(
    scores: torch.Tensor,
    routing: Routing,
    total: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """Return scores [T, E] with -inf for experts outside the best groups."""
    groups = scores.unflatten(1, (routing.groups, -1))  # [T, G, E / G]
    group_scores = total(groups.topk(routing.group_top, dim=-1).values, -1)
    kept = group_scores.topk(routing.groups_kept, dim=-1).indices
    is_kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, kept, True)
    return groups.masked_fill(~is_kept.unsqueeze(2), -torch.inf).flatten(1)
