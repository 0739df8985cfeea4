"""Every entry point of the wheel, where the extra that it needs is not installed: one sentence that
ends with the remedy, and never a traceback."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.flag_parser import FlagParser
from atom_operator.__main__ import _parser as operator_parser
from atom_operator.kubectl_atom import _parser as plugin_parser

ROOT = Path(__file__).parents[3]
_FOUND = {"atom": build_parser, "atom-operator": operator_parser, "kubectl-atom": plugin_parser}
EXTRA_OF = {"atom": "engine", "preflight": "engine", "atom-operator": "operator"}


def commands_of(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Every command below a parser: bare, with the least that it takes, and asked for help."""
    yield (*words, "--help")
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if nested:
        for name, child in nested[0].choices.items():
            yield from commands_of(child, (*words, name))
        return
    yield words
    yield (*words, *_least(parser))


def _least(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Words for what a command requires."""
    if isinstance(parser, FlagParser) and parser.takes_model:
        yield "no-such/model"
    for action in parser._actions:
        is_flag = bool(action.option_strings)
        if action.required and action.nargs != 0:
            if is_flag:
                yield action.option_strings[-1]
            yield str(next(iter(action.choices or ["no-such-file"])))


def every_command() -> list[tuple[str, ...]]:
    found = [
        line
        for program, make in _FOUND.items()
        for line in [(program, "--version"), *commands_of(make(), (program,))]
    ]
    return [*found, ("preflight",), ("preflight", "--devices", "1"), ("preflight", "--report")]


@cache
def results(extras: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """What every command says with these extras alone, without a cluster or a server."""
    chosen = [line for line in every_command() if EXTRA_OF.get(line[0], "operator") not in extras]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.without_packages", extras],
        input=json.dumps(chosen),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/nonexistent", "HOME": "/nonexistent"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(chosen, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("extras", ["", "operator", "engine"])
def test_a_missing_extra_is_a_sentence_with_the_remedy(extras: str) -> None:
    seen = 0
    for line, result in results(extras):
        text, shown = str(result["text"]), " ".join(line)
        assert "Traceback" not in text, f"{shown}\n{text}"
        if result["asked"] and result["status"] != 0:
            last = text.strip().splitlines()[-1]
            extra = EXTRA_OF.get(line[0], "operator")
            assert last.endswith(f"run: pip install atom-platform[{extra}]"), f"{shown}\n{text}"
            seen += 1
    assert seen >= 5, extras


@pytest.mark.parametrize("extras", ["", "operator", "engine"])
def test_the_version_needs_no_extra(extras: str) -> None:
    found = [(line, each) for line, each in results(extras) if "--version" in line]
    assert found
    for line, each in found:
        assert each["status"] == 0, line
        assert str(each["text"]).startswith(line[0])


def test_the_engines_help_needs_no_extra() -> None:
    for line, each in results(""):
        if line[0] == "atom" and line[-1] == "--help":
            assert (each["status"], "usage" in str(each["text"])) == (0, True), line


@pytest.mark.parametrize("name", ["LLMEngine", "AsyncLLMEngine"])
def test_an_import_of_the_engine_says_what_is_missing(name: str) -> None:
    program = f"""
from tests.support.without_packages import hide
hide([])
from atom import {name}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: atom.{name} needs the package ")
    assert last.endswith("pip install atom-platform[engine]")


def test_every_script_of_the_wheel_is_tried() -> None:
    import tomllib

    scripts: Sequence[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "scripts"
    ]
    assert set(scripts) - {"kubectl_complete-atom"} == set(_FOUND)
