"""Flags of the engine's options that fields of spec.engine set. Pure.

The order of a command line is part of a pod's template: a change of it replaces pods.
"""

from __future__ import annotations

from collections.abc import Collection

from atom.sizing.options.option import CrdField, Option
from atom_operator.api.v1alpha1.engine import ENGINE_FIELDS
from atom_operator.domain import EngineOptions


def stated_values(engine: EngineOptions) -> list[str]:
    """Return the numbers and words that each pod states, whether or not they are the defaults."""
    stated = (each for each in ENGINE_FIELDS.values() if _field(each).stated and not _switch(each))
    return [word for each in stated for word in _words(each, engine)]


def stated_switches(engine: EngineOptions) -> list[str]:
    """Return the switches that each pod states, on or off."""
    stated = (each for each in ENGINE_FIELDS.values() if _field(each).stated and _switch(each))
    return [word for each in stated for word in _words(each, engine)]


def changed_options(engine: EngineOptions, names: Collection[str] | None = None) -> list[str]:
    """Return the other options that differ from the engine's default. An older image may not know
    their flags. names: fields of spec.engine, the only ones that are returned; None for all."""
    changed = (
        each
        for name, each in ENGINE_FIELDS.items()
        if (names is None or name in names)
        and not _field(each).stated
        and engine.value(each) != each.default
    )
    return [word for each in changed for word in _words(each, engine)]


def _words(option: Option, engine: EngineOptions) -> list[str]:
    value, flag = engine.value(option), option.flag_name
    if value is None:
        return []
    if _switch(option):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, f"{value:g}" if isinstance(value, float) else str(value)]


def _switch(option: Option) -> bool:
    return option.value_type is bool


def _field(option: Option) -> CrdField:
    assert option.crd is not None, option.name
    return option.crd
