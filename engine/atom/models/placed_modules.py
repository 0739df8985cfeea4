"""A model's modules by the names that a checkpoint has for them, as the loader asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from safetensors import safe_open
from torch import nn

from atom.checkpoint import Checkpoint
from atom.models.decoder import CausalLM
from atom.models.draft_models.draft_model import DraftModel


@dataclass(frozen=True, slots=True)
class PlacedModules:
    """Modules by their names in a checkpoint. modules: by name; unused: how names begin of what may
    be left over."""

    modules: tuple[tuple[str, nn.Module], ...]
    unused: tuple[str, ...]

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        return iter(self.modules)

    def unused_tensors(self) -> tuple[str, ...]:
        return self.unused


def placed_model(model: CausalLM, draft: DraftModel | None) -> PlacedModules:
    """A model's, and those of the layer in its own checkpoint that drafts, if it is wanted."""
    modules = tuple(model.named_modules())
    if draft is None:
        return PlacedModules(modules, model.unused_tensors())
    return PlacedModules((*modules, *draft.placed_modules(frozenset())), draft.unused_tensors())


def placed_draft(draft: DraftModel, checkpoint: Checkpoint) -> PlacedModules:
    """Collect the modules of a checkpoint that only drafts."""
    names: set[str] = set()
    for file in checkpoint.weight_files():
        with safe_open(file, framework="pt") as shard:
            names.update(shard.keys())
    return PlacedModules(tuple(draft.placed_modules(frozenset(names))), draft.unused_tensors())
