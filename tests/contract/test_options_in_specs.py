"""A field of a spec that sets an option of the engine has the default, range and meaning that the
option declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.engine_args import options_from_args
from atom.sizing.options.option import Option, Range
from atom.sizing.options.table import OPTIONS
from atom_operator.api.crd import structural_schema
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.engine import ENGINE_FIELDS, EngineSpec
from atom_operator.children.engine_container import engine_args
from atom_operator.validation.rules import validate
from tests.support.engine_core.option_values import values_of
from tests.support.operator.builders_operator import parsed
from tests.support.operator.builders_operator import plan as make_plan

GPU: dict[str, Any] = {"accelerator": {"type": "amd", "product": "MI300X"}}
SCHEMA = structural_schema(AtomDeploymentSpec)
PARSER = build_parser()
IN_SPECS = [each for each in OPTIONS if each.crd is not None and each.crd.text]
OWNED = [each for each in OPTIONS if each.crd is not None]


def name_of(case: Any) -> str:
    return case.name if isinstance(case, Option) else str(case)


def path_of(option: Option) -> str:
    assert option.crd is not None
    assert option.crd.path is not None
    return option.crd.path


def schema_of(option: Option) -> dict[str, Any]:
    """Return the CRD's schema of the field that sets an option."""
    found = SCHEMA
    for name in path_of(option).split("."):
        found = found["properties"][name]
    return found


def spec_with(option: Option, value: Any) -> dict[str, Any]:
    first, *rest = path_of(option).split(".")
    for name in reversed(rest):
        value = {name: value}
    return {first: value}


def valid(option: Option, field: str) -> Iterator[Any]:
    """Yield values of a field of spec.engine: each word, both switches, numbers of its range."""
    kind = EngineSpec.model_fields[field].annotation
    words = [word for each in get_args(kind) for word in get_args(each)]
    if option.value_type is bool:
        yield from (True, False)
    elif words:
        yield from words
    elif option.value_type is float:
        yield from (0.25, 0.123456789, 1.0)
    else:
        assert isinstance(option.within, Range)
        step = option.within.step
        yield from (int(option.within.least), 32 * step, 64 * step)


def engines_options(**changes: Any) -> Any:
    plan = make_plan(**{**GPU, **changes})
    return values_of(options_from_args(PARSER.parse_args(["serve", *engine_args(plan)])))


@pytest.mark.parametrize("option", IN_SPECS, ids=name_of)
def test_a_field_has_the_text_and_the_default_of_its_option(option: Option) -> None:
    assert option.crd is not None
    default = option.default if option.crd.default is None else option.crd.default
    shown = str(default).lower() if isinstance(default, bool) else f"{default}"
    assert schema_of(option)["description"] == option.crd.text.replace("{default}", shown)


@pytest.mark.parametrize("option", IN_SPECS, ids=name_of)
def test_a_field_has_the_range_of_its_option(option: Option) -> None:
    schema, within = schema_of(option), option.within
    if not isinstance(within, Range):
        assert "minimum" not in schema
        return
    assert option.crd is not None
    most = option.crd.most or within.most
    if within.above:
        (rule,) = schema["x-kubernetes-validations"]
        assert rule["rule"] == f"self > {within.least:.1f} && self <= {most:.1f}"
        return
    assert (schema["minimum"], schema["maximum"]) == (within.least, most)
    for value in (int(within.least) - 1, int(most or 0) + 1):
        with pytest.raises(ValidationError, match=path_of(option).rpartition(".")[2]):
            AtomDeploymentSpec.model_validate(
                parsed().model_dump(by_alias=True, exclude_none=True) | spec_with(option, value)
            )


@pytest.mark.parametrize(
    ("field", "option", "value"),
    [(field, each, v) for field, each in ENGINE_FIELDS.items() for v in valid(each, field)],
    ids=name_of,
)
def test_a_value_of_a_spec_is_the_engines(field: str, option: Option, value: Any) -> None:
    found = getattr(engines_options(engine={to_camel(field): value}), option.name)
    if isinstance(value, float):
        assert found == pytest.approx(value, rel=1e-5)
    else:
        assert found == next((each for each in option.choices if to_camel(each) == value), value)


def test_a_spec_without_options_has_the_engines_defaults() -> None:
    found = engines_options()
    for option in (*ENGINE_FIELDS.values(), *(each for each in IN_SPECS if _is_parallel(each))):
        if option.name != "max_model_len":  # the plan states the model's own
            assert getattr(found, option.name) == option.default, option.name


def _is_parallel(option: Option) -> bool:
    return path_of(option).startswith("parallelism.")


@pytest.mark.parametrize(
    ("option", "spelling"),
    [(each, spelling) for each in OWNED for spelling in each.spellings],
    ids=name_of,
)
def test_a_flag_that_a_field_sets_is_no_extra_argument(option: Option, spelling: str) -> None:
    assert option.crd is not None
    remedy = "leave it out" if option.crd.path is None else f"use spec.{option.crd.path}"
    (problem,) = (
        each
        for each in validate(parsed(engine={"extraArgs": [f"{spelling}=1"]}))
        if each.field == "spec.engine.extraArgs[0]"
    )
    assert problem.message.endswith(remedy)
