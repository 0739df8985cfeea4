"""Linear: one or several projections of the same input, stored as one matrix.

It is built from the model's blueprint (atom.sizing.projection.Projection), which alone defines
shapes, biases and the division of a matrix over ranks. The operations fuse it with a norm before or
a residual after it; a block passes its input, a tensor or a `Normed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from atom.collectives.group import ALONE, Group
from atom.model_ops.activations import Gating
from atom.model_ops.backends.interface import Ops
from atom.model_ops.expert_parallel.dispatch import PaddedDispatch
from atom.model_ops.layernorm import Normed
from atom.model_ops.parallel import ONE_RANK, ExpertRanks, Ranks, Region
from atom.model_ops.placement import Placement, checkpoint_name
from atom.model_ops.quantised.dequantise import expanded
from atom.model_ops.quantised.stored_matrix import StoredMatrix
from atom.model_ops.values import LinearWeight, LoraWeight, Stream
from atom.sizing.projection import Projection, Split


@dataclass(frozen=True, slots=True)
class Build:
    """The context of every layer's construction: the operations, its place among the ranks, and its
    group. experts: the place among ranks that hold whole experts, None if every rank has a part of
    all; exchange: the token exchange with these ranks, None if all have the same tokens; in_tree:
    whether sums over ranks use an order that one rank has, too (tree_sums.py)."""

    ops: Ops
    ranks: Ranks = ONE_RANK
    group: Group = ALONE
    experts: ExpertRanks | None = None
    exchange: PaddedDispatch | None = None
    in_tree: bool = False


@dataclass(frozen=True, slots=True)
class LoraPart:
    """The place of an adapter's matrices for one projection. module: its name in a checkpoint;
    shape: of its whole matrix; region: of that, on this rank; order: of a head's rows."""

    module: str
    shape: tuple[int, int]
    region: Region
    order: torch.Tensor | None


class WeightHolder(nn.Module):
    """A module of one LinearWeight, whose tensors are its parameters; never trained."""

    def _add_bias_once(self, matrices: Iterable[Projection], ranks: Ranks) -> None:
        """Zero the bias on all ranks but the first where products are summed over ranks."""
        divided = any(matrix.split is Split.INPUTS for matrix in matrices)
        if divided and ranks.rank > 0 and self.w.bias is not None:
            self.w.bias.zero_()

    def _hold(self, w: LinearWeight) -> None:
        """Make the weight's tensors the module's parameters, under the names of checkpoints."""
        self.w = w
        self.weight = held_parameter(w.data)
        self.bias = held_parameter(w.bias)
        self.weight_scale = held_parameter(None if w.scales is None else w.scales.scale)
        groups = None if w.scales is None else w.scales.groups
        self.weight_groups = held_parameter(None if groups is None else groups.index)
        self.weight_order = held_parameter(None if groups is None else groups.order)
        self.weight_zero = held_parameter(None if w.scales is None else w.scales.zero)


def held_parameter(tensor: torch.Tensor | None) -> nn.Parameter | None:
    """Make a tensor a parameter that is never trained."""
    return None if tensor is None else nn.Parameter(tensor, requires_grad=False)


class Linear(WeightHolder):
    """A linear layer y = x Wᵀ (+ b), W [out, in]: the projections' rows one after the other.
    Divided by inputs, y is this rank's share of a sum. orders: by a projection's name, the order of
    a head's rows (rotary_embedding.py); regions: of the projections, if this rank's rows of one are
    not contiguous and it appears several times."""

    def __init__(
        self,
        projections: Sequence[Projection],
        build: Build,
        orders: dict[str, torch.Tensor | None] | None = None,
        regions: Sequence[Region] | None = None,
    ) -> None:
        super().__init__()
        self._ops = build.ops
        self._orders = orders or {}
        self._ranks = build.ranks
        held = regions or [build.ranks.region(matrix) for matrix in projections]
        self._parts = [_stored(*part) for part in zip(projections, held, strict=True)]
        rows = sum(region.shape[0] for _, region in self._parts)
        columns = self._parts[0][1].shape[1]
        # Rows of a projection without one keep zeros.
        bias = torch.zeros(rows) if any(matrix.bias for matrix in projections) else None
        self._stored = None
        if any(matrix.quantization is not None for matrix in projections):
            self._stored = StoredMatrix(self._parts, self._orders)
            self._hold(self._stored.weight(bias))
        else:
            self._hold(LinearWeight(torch.empty(rows, columns), bias))

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield where each projection's part comes from; `name`: this module's, at the projections'
        own depth below their layer."""
        names, first = [checkpoint_name(name, matrix.stored_name) for matrix, _ in self._parts], 0
        if self._stored is not None:
            yield from self._stored.placements(names)
        for own, (matrix, region) in zip(names, self._parts, strict=True):
            order = self._orders.get(matrix.name)
            end = first + region.shape[0]
            if self._stored is None:
                yield Placement(
                    name=f"{own}.weight",
                    shape=(matrix.rows, matrix.columns),
                    region=(region.rows, region.columns),
                    target=self.w.data[first:end],
                    order=order,
                )
            if self.w.bias is not None and matrix.bias:
                target = self.w.bias[first:end]
                yield Placement(f"{own}.bias", (matrix.rows,), (region.rows,), target, order)
            first = end

    def finish(self) -> None:
        """Prepare the matrix for the backend, once it is loaded."""
        absorbed = any(matrix.absorbed for matrix, _ in self._parts)
        w = expanded(self.w) if absorbed else self.w
        self._add_bias_once((matrix for matrix, _ in self._parts), self._ranks)
        if any(matrix.split is Split.INPUTS for matrix, _ in self._parts):
            w = replace(w, ranks=self._ranks.size)
        self._hold(self._ops.prepare_linear(w))
        self._stored = None

    @property
    def takes_lora(self) -> bool:
        """Return whether adapters may add to its product, which attention does not look into."""
        return not any(matrix.absorbed for matrix, _ in self._parts)

    def make_lora(self, slots: int, rank: int, place: torch.Tensor) -> None:
        """Let the matrix have low-rank parts of as many adapters, all zeros. place: a tensor of the
        dtype and device that they are to have."""
        rows = tuple(region.shape[0] for _, region in self._parts)
        columns = self._parts[0][1].shape[1]
        self.lora_a = held_parameter(place.new_zeros(slots, len(rows) * rank, columns))
        self.lora_b = held_parameter(place.new_zeros(slots, sum(rows), rank))
        assert self.lora_a is not None
        assert self.lora_b is not None
        self.w = replace(self.w, lora=LoraWeight(self.lora_a.data, self.lora_b.data, rows))

    def lora_parts(self, name: str) -> list[LoraPart]:
        """List which of an adapter's matrices belong to each projection, in the order of their
        rows. name: this module's."""
        return [
            LoraPart(
                checkpoint_name(name, matrix.stored_name),
                (matrix.rows, matrix.columns),
                region,
                self._orders.get(matrix.name),
            )
            for matrix, region in self._parts
        ]

    def forward(self, x: torch.Tensor | Normed) -> torch.Tensor:  # [T, in] → [T, out]
        return x.linear(self.w) if isinstance(x, Normed) else self._ops.linear(x, self.w)

    def add(self, stream: Stream, x: torch.Tensor) -> Stream:
        """Return the stream plus this product, which the next norm may add."""
        return self._ops.add(stream, x, self.w)


def _stored(matrix: Projection, region: Region) -> tuple[Projection, Region]:
    """Return the checkpoint's matrix, and the region in it."""
    if matrix.fused is None:
        return matrix, region
    first, end = (row + matrix.fused.first for row in region.rows)
    return replace(matrix, rows=matrix.fused.rows), Region((first, end), region.columns)


class GatedLinear(Linear):
    """Computes activation(gate) · up of a gated MLP, in one matrix: gate's rows, then up's."""

    def __init__(self, projections: Sequence[Projection], activation: Gating, build: Build) -> None:
        super().__init__(projections, build)
        self._activation = activation

    def forward(self, x: torch.Tensor | Normed) -> torch.Tensor:  # [T, in] → [T, I]
        if isinstance(x, Normed):
            return x.gated_linear(self.w, self._activation)
        return self._ops.act_and_mul(self._ops.linear(x, self.w), self._activation)
