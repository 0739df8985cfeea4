"""Every option is declared once: its flag, default, range and value are those of the table."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.config import Config, EngineOptions, build_config
from atom.entrypoints.flags.engine_args import add_engine_arguments, options_from_args
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.errors import ConfigError
from atom.sizing.options.option import OneOf, Option, Range
from atom.sizing.options.table import GROUPS, OPTIONS
from tests.support.engine_core.option_values import values_of

KEYWORDS = frozenset(vars(values_of(EngineOptions.of(model="m"))))


def name_of(option: Any) -> str:
    return option.name if isinstance(option, Option) else str(option)


def parser() -> FlagParser:
    made = FlagParser()
    add_engine_arguments(made)
    return made


PARSER = parser()
ACTIONS: dict[str, argparse.Action] = {
    flag: action for action in PARSER._actions for flag in action.option_strings
}


def outside(option: Option) -> Iterator[Any]:
    """Yield values that the option's range excludes, at its bounds."""
    within = option.within
    if isinstance(within, OneOf):
        yield "nonesuch"
    if not isinstance(within, Range):
        return
    yield within.least if within.above else within.least - 1
    yield math.nan
    if option.value_type is float:
        yield math.inf
    if within.most is not None:
        yield within.most + 1
    if within.step != 1:
        yield within.step + 1


def test_names_and_flags_are_unique() -> None:
    names = [each.name for each in OPTIONS]
    flags = [flag for each in OPTIONS for flag in (each.flag_name, each.flag.short) if flag]
    assert len(set(names)) == len(names)
    assert len(set(flags)) == len(flags)


def test_a_part_stays_small() -> None:
    for group in GROUPS:
        for part in group.parts:
            assert len(dataclasses.fields(part)) <= 15, part
            assert part.__doc__, part


@pytest.mark.parametrize("option", OPTIONS, ids=name_of)
def test_the_command_line_has_the_flag_with_its_text_and_default(option: Option) -> None:
    action = ACTIONS[option.flag_name]
    assert action.dest == option.name
    assert (action.help or "").startswith(option.text)
    if isinstance(action.default, list):
        assert not action.default
    elif option.name != "client_weights":
        assert action.default == option.default


@pytest.mark.parametrize("option", OPTIONS, ids=name_of)
def test_a_default_is_within_its_range(option: Option) -> None:
    assert option.problem(option.default) is None
    assert option.text


@pytest.mark.parametrize(
    ("option", "value"),
    [(each, value) for each in OPTIONS if each.name in KEYWORDS for value in outside(each)],
    ids=name_of,
)
def test_a_value_outside_its_range_is_refused_by_name(option: Option, value: Any) -> None:
    options = EngineOptions.of(**{"model": "m", "enable_sleep_mode": True, option.name: value})
    with pytest.raises(ConfigError, match=option.name):
        build_config(options)


def test_without_flags_every_option_has_its_default() -> None:
    parsed = values_of(options_from_args(PARSER.parse_args(["--model", "m"])))
    for option in OPTIONS:
        if option.name in KEYWORDS and option.name != "model":
            assert getattr(parsed, option.name) == option.default, option.name


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="max_num_sequences"):
        EngineOptions.of(model="m", max_num_sequences=1)
    with pytest.raises(TypeError, match="model"):
        EngineOptions.of(max_num_seqs=1)


MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "atom-tiny"
PARTS = {"scheduler", "cache", "execution", "parallel", "sleep", "health"}


def test_a_part_of_the_options_is_the_part_of_the_configuration() -> None:
    options = EngineOptions.of(
        model=str(MODEL), device="cpu", max_num_seqs=7, scheduling_policy="prefill_first",
        block_size=32, stall_seconds=9.0, sleep_queue=True, enable_sleep_mode=True,
        op_backends={"sample": "torch_ref"}, data_parallel_size=2,
    )  # fmt: skip
    config: Config = build_config(options)
    for name in PARTS:
        given, built = getattr(options, name), getattr(config, name)
        assert isinstance(built, type(given))
        for field in dataclasses.fields(given):
            assert getattr(built, field.name) == getattr(given, field.name), field.name
