"""Flags of the engine that fields of a spec set, by the options' declarations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from atom.sizing.options.lora import LoraFlags
from atom.sizing.options.option import Option, options_of
from atom.sizing.options.table import OPTIONS


def _flags(options: Iterable[Option]) -> Mapping[str, str | None]:
    """Map each spelling, without its dashes, to the field that sets it; None if none does."""
    return {
        spelling.lstrip("-"): None if each.crd.path is None else f"spec.{each.crd.path}"
        for each in options
        if each.crd is not None
        for spelling in each.spellings
    }


_OF_ADAPTERS = options_of(LoraFlags)
# These belong to the operator only if spec.engine.lora is set.
ADAPTER_FLAGS = _flags(_OF_ADAPTERS)
ENGINE_FLAGS = _flags(each for each in OPTIONS if each not in _OF_ADAPTERS)
