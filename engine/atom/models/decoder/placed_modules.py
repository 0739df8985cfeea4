"""A model's modules by the names that a checkpoint has for them, as the loader asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from atom.models.decoder.causal_lm import CausalLM


@dataclass(frozen=True, slots=True)
class PlacedModules:
    """Modules by their names in a checkpoint. modules: by name; unused: the name prefixes of
    tensors that may be left over."""

    modules: tuple[tuple[str, nn.Module], ...]
    unused: tuple[str, ...]

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        return iter(self.modules)

    def unused_tensors(self) -> tuple[str, ...]:
        return self.unused


def placed_model(model: CausalLM) -> PlacedModules:
    """Collect the modules of a model whose checkpoint has no further layer to load."""
    return PlacedModules(tuple(model.named_modules()), model.unused_tensors())
