"""Routing: the router's product in float32, then AITER's top-k for the kind of scores.

The product is torch's: AITER's tuned one has kernels that round to 16 bits first, whatever dtype is
requested.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.backends.expert_choice import choose, wide_logits
from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.values import RouterWeight


class Router:
    def __init__(self, library: Library) -> None:
        self._library = library

    def route(self, x: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
        logits = wide_logits(x, w)
        if routing.scoring is Scoring.SOFTMAX and w.e_score_correction_bias is not None:
            return choose(logits, w.e_score_correction_bias, routing)
        chosen = (x.shape[0], routing.top_k)
        weights = torch.empty(chosen, dtype=torch.float32, device=x.device)
        ids = torch.empty(chosen, dtype=torch.int32, device=x.device)
        if routing.scoring is Scoring.SIGMOID or routing.is_grouped:
            self._of_groups(logits, w.e_score_correction_bias, routing, Routed(ids, weights))
            return Routed(ids, weights)
        self._library["topk_softmax"](
            topk_weights=weights,
            topk_indices=ids,
            token_expert_indices=torch.empty_like(ids),
            gating_output=logits,
            need_renorm=routing.renormalize,
        )
        return Routed(ids, weights if routing.scale == 1.0 else weights * routing.scale)

    def _of_groups(
        self,
        logits: torch.Tensor,
        e_score_correction_bias: torch.Tensor | None,
        routing: Routing,
        routed: Routed,
    ) -> None:
        common = {
            "gating_output": logits,
            "topk_weights": routed.weights,
            "topk_ids": routed.ids,
            "num_expert_group": routing.groups,
            "topk_group": routing.groups_kept,
            "need_renorm": routing.renormalize,
            "routed_scaling_factor": routing.scale,
        }
        if routing.scoring is Scoring.SOFTMAX:
            self._library["grouped_topk"](**common, is_softmax=True)
            return
        bias = (
            logits.new_zeros(logits.shape[1])
            if e_score_correction_bias is None
            else e_score_correction_bias
        )
        self._library["biased_grouped_topk"](**common, correction_bias=bias)
