"""Every command, flag, choice and name of `kubectl atom` is offered to the shell at its place."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom_operator.kubectl_atom import _parser
from atom_operator.plugin.completion import FILES, NO_FILES, SHELLS, complete, script

ROOT = Path(__file__).resolve().parents[3]
KNOWN = {"atomdeployments": ["chat", "code"], "namespaces": ["team"], "contexts": ["prod"]}


def offered(*words: str) -> list[str]:
    found = complete(_parser(), words, lambda kind: KNOWN[kind])
    return [line.partition("\t")[0] for line in found]


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    (found,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    yield from found.choices.items()


def test_every_command_is_offered() -> None:
    names = [name for name, _ in commands()]
    assert {"plan", "status", "why", "top", "logs", "chat", "gpus", "completion"} <= set(names)
    assert offered("") == [*names, NO_FILES]
    assert offered("st") == ["status", NO_FILES]
    assert offered("-n", "team", "") == [*names, NO_FILES]
    assert offered() == [*names, NO_FILES]


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_flag_of_a_command_is_offered_with_its_values(name: str) -> None:
    parser = dict(commands())[name]
    for action in parser._actions:
        for option in action.option_strings:
            if not option.startswith("--"):
                continue
            assert option in offered(name, option[:4])
            if action.choices is not None:
                values = [str(choice) for choice in action.choices]
                assert offered(name, option, "") == [*values, NO_FILES]
            elif option in ("--namespace", "--context"):
                assert offered(name, option, "") == [*KNOWN[f"{option[2:]}s"], NO_FILES]
            elif action.metavar == "FILE":
                assert offered(name, option, "") == [FILES]


def test_a_file_is_offered_where_a_command_takes_one() -> None:
    assert offered("import", "") == [FILES]
    assert offered("import", "model.yaml", "") == [NO_FILES]


@pytest.mark.parametrize("name", ["status", "why", "top", "logs", "chat"])
def test_names_of_atomdeployments_are_offered_once(name: str) -> None:
    assert offered(name, "") == ["chat", "code", NO_FILES]
    assert offered(name, "-o", "json", "c") == ["chat", "code", NO_FILES]
    assert offered(name, "chat", "") == [NO_FILES]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_parses(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not on this machine")
    done = subprocess.run(
        [program, "-n"], input=script(shell), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_bash_offers_what_the_plugin_says(tmp_path: Path) -> None:
    plugin = tmp_path / "kubectl-atom"
    paths = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "engine")])
    plugin.write_text(
        f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} -m atom_operator.kubectl_atom "$@"\n'
    )
    plugin.chmod(0o755)
    lines = [
        "source <(kubectl-atom completion bash)",
        'COMP_WORDS=(kubectl-atom status -o "") COMP_CWORD=3',
        "_kubectl_atom",
        'echo "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["text", "json", "yaml"], done.stderr
