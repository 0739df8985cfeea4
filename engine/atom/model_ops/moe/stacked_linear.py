"""StackedLinear: a layer's experts' projections of one kind, stored as one tensor.

It is built from the blueprint, as Linear is. A checkpoint has a matrix for each expert or one
tensor of all; the placements handle both, and either is read expert by expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from atom.model_ops.activations import Gating
from atom.model_ops.linear import Build, LoraPart, WeightHolder, held_parameter
from atom.model_ops.parallel import ONE_RANK, Region
from atom.model_ops.placement import Placement, checkpoint_name
from atom.model_ops.quantised.checkpoint_layouts import InStack
from atom.model_ops.quantised.stored_matrix import StoredMatrix
from atom.model_ops.values import LinearWeight, LoraWeight
from atom.sizing.layers import Stacking
from atom.sizing.projection import Projection

_DEPTH = 3  # of this module's name below its layer


@dataclass(frozen=True, slots=True)
class LoraStack:
    """The place of an adapter's matrices for a stack. name: of the stack in a checkpoint; held:
    this rank's of `count` experts; in_turn: rows of its parts alternate there; parts: of each held
    expert, if it has its own matrices."""

    name: str
    held: tuple[int, ...]
    count: int
    in_turn: bool
    parts: list[list[LoraPart]]


class StackedLinear(WeightHolder):
    """The stack W [E, out, in], with optional biases [E, out]: of each expert the projections' rows
    one after the other. gating: combines the two projections' results. stacking: of the checkpoint,
    whose experts may be one tensor."""

    def __init__(
        self,
        projections: Sequence[Projection],
        build: Build,
        *,
        gating: Gating | None = None,
        stacking: Stacking = Stacking.APART,
    ) -> None:
        super().__init__()
        self._ops = build.ops
        self._stacking = stacking
        # Ranks that share experts have whole ones; others have a part of each.
        self._ranks = build.ranks if build.experts is None else ONE_RANK
        self._parts: list[tuple[Projection, Region]] = [
            (matrix, self._ranks.region(matrix)) for matrix in projections
        ]
        count = projections[0].copies
        self._held = range(count) if build.experts is None else build.experts.held(count)
        experts = len(self._held)
        rows = sum(region.shape[0] for _, region in self._parts)
        columns = self._parts[0][1].shape[1]
        bias = torch.empty(experts, rows) if projections[0].bias else None
        self._stored = None
        if projections[0].quantization is not None:
            self._stored = StoredMatrix(self._parts, {}, experts)
            w = self._stored.weight(bias)
        else:
            w = LinearWeight(torch.empty(experts, rows, columns), bias)
        self._hold(replace(w, gating=gating))

    def placements(self, name: str) -> Iterator[Placement]:
        """Yield where each expert's part comes from."""
        place = {
            Stacking.APART: self._of,
            Stacking.IN_TURN: self._of_stack,
            Stacking.SIDE_BY_SIDE: self._side_by_side,
            Stacking.OUTPUTS_FIRST: self._side_by_side,
            Stacking.AS_FOUND: self._as_found,
        }[self._stacking]
        for slot, expert in enumerate(self._held):
            yield from place(name, expert, slot)

    def elsewhere(self, name: str) -> Iterator[str]:
        """Yield how names of tensors begin that other ranks hold."""
        count = self._parts[0][0].copies
        if not self._stacking.in_modules:
            return
        for expert in sorted(set(range(count)).difference(self._held)):
            for matrix, _ in self._parts:
                yield f"{checkpoint_name(name, matrix.copy_name(expert), _DEPTH)}."

    def _of(self, name: str, expert: int, slot: int) -> Iterator[Placement]:
        names, first = (
            [checkpoint_name(name, matrix.copy_name(expert), _DEPTH) for matrix, _ in self._parts],
            0,
        )
        if self._stored is not None:
            yield from self._stored.placements(names, slot)
        for own, (matrix, region) in zip(names, self._parts, strict=True):
            end = first + region.shape[0]
            if self._stored is None:
                yield Placement(
                    name=f"{own}.weight",
                    shape=(matrix.rows, matrix.columns),
                    region=(region.rows, region.columns),
                    target=self.w.data[slot, first:end],
                )
            if self.w.bias is not None:
                target = self.w.bias[slot, first:end]
                yield Placement(f"{own}.bias", (matrix.rows,), (region.rows,), target)
            first = end

    def _as_found(self, name: str, expert: int, slot: int) -> Iterator[Placement]:
        apart = self._of(name, expert, slot)
        if self._stored is not None and not self._stored.is_online:
            yield from apart
            return
        for own, stacked in zip(apart, self._side_by_side(name, expert, slot), strict=True):
            yield replace(own, instead=stacked)

    def _of_stack(self, name: str, expert: int, slot: int) -> Iterator[Placement]:
        matrix, region = self._parts[0]
        parts = len(self._parts)
        own = checkpoint_name(name, f"{matrix.stack_name}.{name.rpartition('.')[2]}", _DEPTH)
        rows = (region.rows[0] * parts, region.rows[1] * parts)
        if self._stored is not None:
            yield from self._stored.stack_placements(own, expert, slot)
        else:
            yield Placement(
                name=own,
                shape=(matrix.copies, matrix.columns, matrix.rows * parts),
                region=((expert, expert + 1), region.columns, rows),
                target=self.w.data[slot].unflatten(0, (parts, -1)).permute(2, 1, 0),
            )
        if self.w.bias is not None:
            yield Placement(
                name=f"{own}_bias",
                shape=(matrix.copies, matrix.rows * parts),
                region=((expert, expert + 1), rows),
                target=self.w.bias[slot].unflatten(0, (parts, -1)).t(),
            )

    def _side_by_side(self, name: str, expert: int, slot: int) -> Iterator[Placement]:
        parts, first, before = len(self._parts), 0, 0
        matrix, _ = self._parts[0]
        own = checkpoint_name(name, f"{matrix.stack_name}.{name.rpartition('.')[2]}", _DEPTH)
        outputs_first = self._stacking is not Stacking.SIDE_BY_SIDE
        for number, (matrix, region) in enumerate(self._parts):
            end = first + region.shape[0]
            rows = (before + region.rows[0], before + region.rows[1])
            if self._stored is not None:
                place = InStack(expert, rows, matrix.rows * parts, outputs_first)
                yield from self._stored.stacked_part(own, slot, number, place)
            elif outputs_first:
                yield Placement(
                    name=own,
                    shape=(matrix.copies, matrix.rows * parts, matrix.columns),
                    region=((expert, expert + 1), rows, region.columns),
                    target=self.w.data[slot, first:end],
                )
            else:
                yield Placement(
                    name=own,
                    shape=(matrix.copies, matrix.columns, matrix.rows * parts),
                    region=((expert, expert + 1), region.columns, rows),
                    target=self.w.data[slot, first:end].t(),
                )
            first, before = end, before + matrix.rows

    def make_lora(self, slots: int, rank: int, place: torch.Tensor) -> None:
        """Let every matrix have low-rank parts of as many adapters, as `Linear.make_lora` does."""
        rows, experts = tuple(region.shape[0] for _, region in self._parts), len(self._held)
        columns = self._parts[0][1].shape[1]
        self.lora_a = held_parameter(place.new_zeros(slots, experts, len(rows) * rank, columns))
        self.lora_b = held_parameter(place.new_zeros(slots, experts, sum(rows), rank))
        assert self.lora_a is not None
        assert self.lora_b is not None
        self.w = replace(self.w, lora=LoraWeight(self.lora_a.data, self.lora_b.data, rows))

    def lora_stack(self, name: str) -> LoraStack:
        """Return the place of an adapter's matrices for these experts. name: this module's."""
        matrix, _ = self._parts[0]
        own = checkpoint_name(name, f"{matrix.stack_name}.{name.rpartition('.')[2]}", _DEPTH)
        return LoraStack(
            own,
            tuple(self._held),
            matrix.copies,
            self._stacking is Stacking.IN_TURN,
            [
                [
                    LoraPart(
                        checkpoint_name(name, each.copy_name(expert), _DEPTH),
                        (each.rows, each.columns),
                        region,
                        None,
                    )
                    for each, region in self._parts
                ]
                for expert in self._held
            ],
        )

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all stored tensors of the experts, [E, ..]."""
        for parameter in self.parameters():
            yield parameter.data

    def finish(self) -> None:
        """Prepare the matrices for the backend, once they are loaded."""
        self._add_bias_once((matrix for matrix, _ in self._parts), self._ranks)
        self._hold(self._ops.prepare_experts(self.w))
        self._stored = None
