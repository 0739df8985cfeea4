"""The engine's options by their keywords, whichever part declares them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from atom.config import EngineOptions
from atom.sizing.options.option import options_of


def values_of(options: EngineOptions) -> SimpleNamespace:
    """Return the value of each option as an attribute with the option's keyword."""
    found = {}
    for field in dataclasses.fields(options):
        part = getattr(options, field.name)
        own = options_of(type(part)) if dataclasses.is_dataclass(part) else ()
        found |= {each.name: getattr(part, each.attribute) for each in own} or {field.name: part}
    return SimpleNamespace(**found)
