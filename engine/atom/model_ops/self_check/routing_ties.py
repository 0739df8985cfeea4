"""Tokens whose choice of experts hangs on a rounding: no reference tells which choice is right.

A kernel rounds a token before its router reads it, and the reference does not. Each rounding moves
a logit by about (sum of x² w²)^½ times its relative size. A token whose experts could be others if
all logits moved so, each in the worse direction, is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from atom.model_ops.backends import load_backend
from atom.model_ops.backends.expert_choice import choose, wide_logits
from atom.model_ops.routing import Routing
from atom.model_ops.values import RouterWeight

# Pairs of draws that show whether a token's groups of experts hang on a rounding.
_DRAWN_PAIRS = 8


def undecided_tokens(op: str, args: tuple[Any, ...], tolerance: float) -> torch.Tensor | None:
    """Return which tokens' experts hang on a rounding [T]; None for an operation that chooses none.
    args: the call's, in float32; tolerance: the relative error that a token may have."""
    if op == "route":
        x, router, routing = args
    elif op == "norm_experts":
        stream, norm, w = args
        x, _ = load_backend("torch_ref").operations["norm"](stream, norm)
        router, routing = w.router, w.routing
    else:
        return None
    return _hang_on(x, router, routing, tolerance)


def _hang_on(
    x: torch.Tensor, router: RouterWeight, routing: Routing, tolerance: float
) -> torch.Tensor:
    logits = wide_logits(x, router)
    chosen = _chosen(logits, router, routing)
    error = tolerance * (x.square() @ router.matrix.data.float().square().t()).sqrt()
    changes = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    for moved in _moves(chosen, error, routing):
        changes |= (_chosen(logits + moved, router, routing) != chosen).any(1)
    return changes


def _chosen(logits: torch.Tensor, router: RouterWeight, routing: Routing) -> torch.Tensor:
    """Return whether an expert is chosen [T, E]."""
    ids = choose(logits, router.e_score_correction_bias, routing).ids.long()
    return torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, True)


def _moves(chosen: torch.Tensor, error: torch.Tensor, routing: Routing) -> Iterator[torch.Tensor]:
    """Yield changes of the logits. A draw and its opposite: one of the two parts a tie."""
    yield torch.where(chosen, -error, error)
    if routing.is_grouped:
        draw = torch.Generator(error.device).manual_seed(0)
        for _ in range(_DRAWN_PAIRS):
            moved = error * torch.randn(error.shape, generator=draw, device=error.device)
            yield moved
            yield -moved
