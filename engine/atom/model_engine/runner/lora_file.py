"""AdapterFile: an open safetensors file of an adapter. Every name must be understood before any
tensor is read.

Experts' matrices have PEFT's two forms: a module for each expert's matrix, as in checkpoints, or
one matrix of all experts for each parameter of transformers' fused experts. In the second form the
module that wraps gate_up_proj is the inner one (`base_layer`) if both are adapted.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom.errors import AdapterError
from atom.lora_checkpoint import WEIGHTS_FILE, AdapterConfig
from atom.model_ops.linear import LoraPart
from atom.model_ops.moe.stacked_linear import LoraStack
from atom.model_ops.placement import in_order
from atom.sizing.stored_names import has_turned_experts, module_reader

_PREFIX = "base_model.model."
_LOW_RANK = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
# Explanations of names that match none of the model's matrices, by a part of the name.
_NOT_SERVED = (
    (re.compile(r"lora_embedding|embed_tokens|lm_head"), "embeddings and output heads keep theirs"),
    (re.compile(r"lora_magnitude"), "DoRA is not served"),
    (
        re.compile(r"\.experts\b"),
        "there is room for it only where the model has experts and the server --lora-experts; "
        "start it so, or",
    ),
    (
        re.compile(r"kv_b_proj"),
        "attention multiplies with kv_b_proj in halves, which keeps its own",
    ),
    (
        re.compile(r"o_a_proj"),
        "each group of heads is multiplied with a part of o_a_proj, which keeps its own",
    ),
    (
        re.compile(r"(mlp|block_sparse_moe|feed_forward|mixer)\.gate\b|\brouter\b"),
        "routers keep theirs",
    ),
    (re.compile(r"(conv1d|conv\.conv)\b"), "convolutions over time keep theirs"),
    (re.compile(r"bias$"), "biases are not served"),
)
_INSIDE = ".base_layer"
_PARAMETERS = ("gate_up_proj", "up_proj", "down_proj")  # in the order in which PEFT wraps them
_BLOCK = re.compile(r"\.\w+\.experts\.")


class AdapterNames:
    """Find the model's matrices by their names in adapters. modules: of one matrix; stacks: of
    all experts' matrices; turned: see `has_turned_experts`."""

    def __init__(
        self,
        modules: Container[str],
        stacks: Iterable[LoraStack],
        hf_config: Mapping[str, Any],
    ) -> None:
        self._modules = modules
        self._stacks = {name: stack.name for stack in stacks for name in _stack_names(stack)}
        self._read = module_reader(hf_config)
        self.turned = has_turned_experts(hf_config)

    def module(self, name: str) -> str | None:
        """Return the model's name of a module; None if the model has no such module."""
        return next((found for found in self._candidates(name) if found in self._modules), None)

    def stack(self, name: str) -> str | None:
        """Return the model's name of a parameter of all experts; None if the model has none."""
        known = (self._stacks.get(found) for found in self._candidates(name))
        return next(filter(None, known), None)

    def _candidates(self, name: str) -> Iterator[str]:
        for found in self._read(name):
            yield found
            yield _BLOCK.sub(".mlp.experts.", found)


def _stack_names(stack: LoraStack) -> Iterator[str]:
    """Yield the names that transformers' parameter may have."""
    for name in (stack.name, _BLOCK.sub(".mlp.experts.", stack.name)):
        yield name
        if len(stack.parts[0]) == 1:  # without a gate
            yield name.replace("gate_up_proj", "up_proj")


@dataclass(frozen=True, slots=True)
class StackOfAdapter:
    """Holds an adapter's matrices of all experts: shrink [E, r, in], expand [E, out, r], the latter
    with the scaling. in_turn: see LoraStack; parts: projections whose rows expand has."""

    shrink: torch.Tensor
    expand: torch.Tensor
    in_turn: bool
    parts: int

    def of(self, expert: int, index: int, part: LoraPart) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of an expert's projection, as `AdapterFile.read` does."""
        rows = self.expand[expert]
        own = rows[index :: self.parts] if self.in_turn else rows.chunk(self.parts)[index]
        columns = slice(*part.region.columns)
        return self.shrink[expert][:, columns], own[slice(*part.region.rows)]


class AdapterFile:
    """An open file of an adapter, all of whose names belong to matrices of the model. modules: the
    matrices and stacks that it has parts of."""

    def __init__(self, config: AdapterConfig, shard: Any, known: AdapterNames) -> None:
        self._config = config
        self._shard = shard
        self._file = config.folder / WEIGHTS_FILE
        self._turned = known.turned
        self._names: dict[tuple[str, str], str] = {}
        self._peft_names: dict[str, str] = {}
        for stored in shard.keys():  # noqa: SIM118 - not a dict
            found = _LOW_RANK.fullmatch(stored.removeprefix(_PREFIX))
            place = None if found is None else self._place_of(found["module"], known)
            if found is None or place is None:
                raise AdapterError(f"{self._file}: {self._refusal(stored)}")
            module, peft_name = place
            other = self._names.setdefault((module, found["side"]), stored)
            if other != stored:
                raise AdapterError(
                    f"{self._file}: holds {other} and {stored}, which are one matrix here; save "
                    "the adapter again"
                )
            self._peft_names[module] = peft_name
        if not self._names:
            raise AdapterError(
                f"{self._file}: holds no tensor, so the adapter would change nothing; save the "
                "adapter again, with the weights that were trained"
            )
        self.modules = {module for module, _ in self._names}
        for module in sorted(self.modules):
            for side in "AB":
                if (module, side) not in self._names:
                    raise AdapterError(
                        f"{self._file}: {module} has no lora_{side}; the file is incomplete: copy "
                        "or download it again"
                    )

    def read(self, part: LoraPart) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shrinking and the expanding matrix of a projection, the part of each that this
        rank holds: [r, in], [out, r], the latter with the scaling."""
        rank, (rows, columns) = self._rank_of(part.module), part.shape
        shapes = {"A": (rank, columns), "B": (rows, rank)}
        slices = {"A": (slice(None), slice(*part.region.columns))}
        slices["B"] = (slice(*part.region.rows), slice(None))
        read = {
            side: self._checked(part.module, side, wanted, slices[side])
            for side, wanted in shapes.items()
        }
        scaled = read["B"] * self._scaling(part.module)
        return read["A"], in_order(scaled, part.order)

    def _checked(
        self, module: str, side: str, wanted: tuple[int, int], region: tuple[slice, slice]
    ) -> torch.Tensor:
        """Read a region of a matrix of the shape that is wanted, in float32."""
        name = self._names[module, side]
        header = self._shard.get_slice(name)
        if tuple(header.get_shape()) != wanted:
            raise AdapterError(
                f"{self._file}: {name} has shape {header.get_shape()}, where this model and "
                f"rank {self._rank_of(module)} call for {list(wanted)}{self._trained_on()}"
            )
        found: torch.Tensor = header[region].float()
        if not bool(found.isfinite().all()):
            raise AdapterError(
                f"{self._file}: {name} holds values that are no numbers; the adapter was "
                "written by a run that failed: use another one"
            )
        return found

    def read_stack(self, stack: LoraStack) -> StackOfAdapter:
        """Read the matrices of all of a stack's experts, each [r, in] and [out, r]."""
        parts = stack.parts[0]
        rank, count = self._rank_of(stack.name), stack.count
        rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1]
        every = (slice(None), slice(None))
        if self._turned:
            rows, columns = columns, rows
        a = self._checked(stack.name, "A", (rank * count, columns), every)
        b = self._checked(stack.name, "B", (rows, rank * count), every)
        shrink = a.view(count, rank, columns)
        expand = b.view(rows, rank, count).permute(2, 0, 1)
        if self._turned:
            shrink, expand = expand.transpose(1, 2), shrink.transpose(1, 2)
        return StackOfAdapter(
            shrink,
            expand * self._scaling(stack.name),
            stack.in_turn,
            len(parts),
        )

    def _rank_of(self, module: str) -> int:
        return self._config.rank_of(self._peft_names[module])

    def _scaling(self, module: str) -> float:
        return self._config.scaling(self._peft_names[module])

    def _place_of(self, name: str, known: AdapterNames) -> tuple[str, str] | None:
        """Return the model's name of the matrix that a stored one adapts, and PEFT's, which
        patterns match."""
        experts, depth = name, 0
        while experts.endswith(_INSIDE):
            experts, depth = experts.removesuffix(_INSIDE), depth + 1
        if not experts.endswith(".experts"):
            module = known.module(name)
            return None if module is None else (module, name)
        adapted = [own for own in _PARAMETERS if self._adapts(f"{experts}.{own}")]
        if depth >= len(adapted):
            return None
        parameter = f"{experts}.{adapted[len(adapted) - 1 - depth]}"
        stack = known.stack(parameter)
        return None if stack is None else (stack, parameter)

    def _adapts(self, parameter: str) -> bool:
        """Return whether the configuration targets a parameter, by PEFT's rule."""
        parts = parameter.split(".")
        ends = (".".join(parts[first:]) for first in range(len(parts)))
        return not self._config.target_parameters.isdisjoint(ends)

    def _refusal(self, stored: str) -> str:
        for pattern, why in _NOT_SERVED:
            if pattern.search(stored):
                joined = "" if why.endswith(" or") else ";"
                return f"{stored} cannot be served: {why}{joined} train the adapter without"
        return f"{stored} belongs to no matrix of this model{self._trained_on()}"

    def _trained_on(self) -> str:
        base = self._config.base
        return f"; the adapter was trained on {base}" if base else ""
