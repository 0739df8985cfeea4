"""Router: the experts of a token and their weights (routing.py has the rules)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from atom.errors import ModelError
from atom.model_ops.backends.expert_choice import weigh, wide_logits
from atom.model_ops.linear import Build
from atom.model_ops.moe.correction_bias import Correction
from atom.model_ops.placement import Placement, checkpoint_name
from atom.model_ops.routing import Routed, Routing
from atom.model_ops.values import LinearWeight, RouterWeight
from atom.sizing.projection import Projection

_DEPTH = 2  # of this module's own name below a layer, however deep a checkpoint's is


class Router(nn.Module):
    """The router's matrix W [E, H], with an optional bias. correction: where a checkpoint has the
    e_score_correction_bias, which affects only the choice of experts; None without one."""

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
        """Yield the checkpoint's sources of the parameters."""
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


class TokenRouter(Router):
    """A router that weighs experts alone: which ones a token goes through is in a table, tid2eid
    [vocabulary, k] int64."""

    def __init__(self, matrix: Projection, routing: Routing, build: Build, vocab_size: int) -> None:
        super().__init__(matrix, routing, build)
        self.tid2eid = _parameter(torch.empty(vocab_size, routing.top_k, dtype=torch.int64))

    def placements(self, name: str) -> Iterator[Placement]:
        yield from super().placements(name)
        own = f"{checkpoint_name(name, self._matrix.name, _DEPTH)}.tid2eid"
        table = Placement.whole(own, self.tid2eid.data)
        yield replace(table, dtypes=(torch.int64, torch.int32), convert=self._checked)

    def _checked(self, table: torch.Tensor) -> torch.Tensor:
        """Refuse a table with experts that do not exist: its values are used as indices."""
        if bool(((table < 0) | (table >= self._matrix.rows)).any()):
            raise ModelError(
                f"tid2eid names experts beyond the {self._matrix.rows} of n_routed_experts; "
                "config.json and weights do not belong together"
            )
        return table

    def of_tokens(self, x: torch.Tensor, token_ids: torch.Tensor) -> Routed:
        """Weigh the experts of tokens token_ids [T] by their hidden states x [T, H]."""
        return weigh(wide_logits(x, self.w), self.tid2eid[token_ids], self._routing)


def _parameter(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)
