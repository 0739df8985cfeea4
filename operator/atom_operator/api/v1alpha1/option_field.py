"""Fields of a spec that set an option of the engine: default, range and text from its declaration.

`atom.sizing.options` declares the options; a spec names the field and its type. A word of an
enumeration is camelCase in a spec and snake_case in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic import Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from atom.sizing.options.option import CrdField, Option, Range
from atom.sizing.options.table import OPTION_OF, OPTIONS
from atom_operator.api.v1alpha1.common import cel


def option_field(name: str) -> Any:
    """Declare an optional field of a spec that sets the engine's option `name`."""
    option = OPTION_OF[name]
    least, most = _bounds(option)
    return Field(
        default=None,
        description=_field_of(option).text.replace("{default}", _written(default_of(name))),
        ge=least,
        le=most,
        json_schema_extra=partial(_add_rules, _rules(option)),
    )


def default_of(name: str) -> Any:
    """Return the default of the field that sets an option."""
    option = OPTION_OF[name]
    own = _field_of(option).default
    return option.default if own is None else own


def spec_path(name: str) -> str:
    """Return the field that sets an option, such as spec.engine.maxNumSeqs."""
    return f"spec.{_field_of(OPTION_OF[name]).path}"


def in_spec(option: Option, value: Any) -> Any:
    """Return a value of the engine's option as a spec has it."""
    return to_camel(value) if option.choices else value


def from_spec(option: Option, value: Any) -> Any:
    """Return the engine's value of a field of a spec."""
    return next((each for each in option.choices if to_camel(each) == value), value)


# The options that a field of the same value sets, by the field's path below spec.
OPTION_AT = {each.crd.path: each for each in OPTIONS if each.crd and each.crd.text}


def _field_of(option: Option) -> CrdField:
    if option.crd is None:
        raise ValueError(f"{option.name} has no field in a spec; declare it with crd=CrdField(…)")
    return option.crd


def _bounds(option: Option) -> tuple[float | None, float | None]:
    """Return the lowest and the highest number; None if there is no bound, or a rule has it."""
    within = option.within
    if not isinstance(within, Range) or within.above:
        return None, None
    return within.least, _most(option, within)


def _rules(option: Option) -> list[tuple[str, str]]:
    """Return the CEL rules of a range that two bounds do not express, with their messages."""
    within = option.within
    if not isinstance(within, Range):
        return []
    most = _most(option, within)
    if within.above:
        rule = f"self > {within.least:.1f} && self <= {most:.1f}"
        return [(rule, f"must be greater than {within.least:g} and at most {most:g}")]
    if within.step != 1:
        rule = f"self == {within.least:g} || self % {within.step} == 0"
        return [(rule, f"must be {within}, at most {most}")]
    return []


def _most(option: Option, within: Range) -> float | None:
    stated = _field_of(option).most
    return within.most if stated is None else stated


def _add_rules(rules: Sequence[tuple[str, str]], schema: JsonDict) -> None:
    """Add CEL rules to the type of a value that is set."""
    if rules:
        kinds: Any = schema["anyOf"]
        kinds[0].update(cel(*rules))


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
