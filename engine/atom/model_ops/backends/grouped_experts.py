"""Experts one after the other, each with the tokens that chose it: for the CPU's backends.

Tokens are sorted by expert, so each expert's rows are contiguous in inputs and outputs; a single
token's rows need no sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight

Product = Callable[[torch.Tensor, LinearWeight], torch.Tensor]
Activate = Callable[[torch.Tensor, Gating], torch.Tensor]


def grouped_experts(
    linear: Product,
    act_and_mul: Activate,
    total: Callable[[torch.Tensor, int], torch.Tensor] = torch.sum,
) -> Callable[..., torch.Tensor]:
    """Build `Ops.experts` over a backend's products and activations. total: adds up along a
    dimension."""

    def experts(x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
        tokens, chosen = routed.ids.shape
        ids = routed.ids
        if routed.is_partial:
            ids = torch.where((ids >= 0) & (ids < w.count), ids, -1)
        order = None if tokens == 1 else ids.flatten().argsort(stable=True)
        rows = x if order is None else x.index_select(0, order // chosen)
        if w.weighs_inputs:
            weights = routed.weights.view(-1, 1)
            given = rows.expand(tokens * chosen, -1)
            rows = (given * (weights if order is None else weights[order])).to(x.dtype)
        make = torch.zeros if routed.is_partial else torch.empty
        out = make((tokens * chosen, x.shape[1]), dtype=x.dtype)
        for expert, first, end in _runs(ids, order, w.count):
            own = rows if len(rows) == 1 else rows[first:end]
            gated = act_and_mul(linear(own, w.gate_up.of(expert)), w.activation)
            out[first:end] = linear(gated, w.down.of(expert))
        if order is not None:
            out = torch.empty_like(out).index_copy_(0, order, out)
        results = out.view(tokens, chosen, -1)
        if not w.weighs_inputs:
            results = results * routed.weights.unsqueeze(2)
        return total(results, 1).to(x.dtype)

    return experts


def _runs(
    ids: torch.Tensor, order: torch.Tensor | None, count: int
) -> Iterator[tuple[int, int, int]]:
    """Yield each expert with its rows, first to end; skip rows of -1."""
    if order is None:
        for row, expert in enumerate(ids[0].tolist()):
            if expert >= 0:
                yield expert, row, row + 1
        return
    first, *counts = (ids.flatten() + 1).bincount(minlength=count + 1).tolist()
    for expert, rows in enumerate(counts):
        if rows:
            yield expert, first, first + rows
            first += rows
