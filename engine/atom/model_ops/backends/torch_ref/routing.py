"""Routing in plain PyTorch."""

from __future__ import annotations

import torch

from atom.model_ops.backends.expert_choice import choose, wide_logits
from atom.model_ops.routing import Routed, Routing
from atom.model_ops.values import RouterWeight


def route(x: torch.Tensor, w: RouterWeight, routing: Routing) -> Routed:
    return choose(wide_logits(x, w), w.e_score_correction_bias, routing)
