"""Router: which experts a token goes through, and with what weights (routing.py says the rules)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from atom.model_ops.linear import Build
from atom.model_ops.moe.correction_bias import Correction
from atom.model_ops.placement import Placement, checkpoint_name
from atom.model_ops.routing import Routed, Routing
from atom.model_ops.values import LinearWeight, RouterWeight
from atom.sizing.projection import Projection

_DEPTH = 2  # of this module's own name below a layer, however deep a checkpoint's is


class Router(nn.Module):
    """W [E, H], perhaps with a bias. correction: where a checkpoint has the
    e_score_correction_bias, which counts where experts are chosen alone; None without one."""

    def __init__(
        self,
        matrix: Projection,
        routing: Routing,
        build: Build,
        *,
        correction: Correction | None = None,
    ) -> None:
        super().__init__()
        self._ops = build.ops
        self._matrix = matrix
        self._routing = routing
        self._correction = correction
        experts = matrix.rows
        self.weight = _parameter(torch.empty(experts, matrix.columns))
        self.bias = _parameter(torch.empty(experts)) if matrix.bias else None
        e_score_correction_bias = torch.empty(experts, dtype=torch.float32)
        self.e_score_correction_bias = _parameter(e_score_correction_bias) if correction else None
        self.w = RouterWeight(
            LinearWeight(self.weight.data, None if self.bias is None else self.bias.data),
            None if self.e_score_correction_bias is None else self.e_score_correction_bias.data,
        )

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield where the parameters come from in a checkpoint."""
        own = checkpoint_name(name, self._matrix.name, _DEPTH)
        for kind, parameter in (
            ("weight", self.weight),
            ("bias", self.bias),
        ):
            if parameter is not None:
                yield Placement.whole(f"{own}.{kind}", parameter.data)
        if self._correction and self.e_score_correction_bias is not None:
            named = checkpoint_name(name, self._correction.name, _DEPTH)
            yield self._correction.placement(named, self.e_score_correction_bias.data)

    def finish(self) -> None:
        """Prepare the matrix for the backend, once it is loaded."""
        matrix = self._ops.prepare_linear(self.w.matrix)
        self.w = RouterWeight(matrix, self.w.e_score_correction_bias)
        self.weight.data = matrix.data

    def forward(self, x: torch.Tensor) -> Routed:  # [T, H] → [T, k]
        return self._ops.route(x, self.w, self._routing)


def _parameter(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)
