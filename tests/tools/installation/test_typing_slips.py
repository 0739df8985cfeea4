"""Slips of the hand in every command of every program: the error names the flag that was meant, and
for a wrong value a right one."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.flags.other_flags import ROW_OF
from atom_operator.__main__ import _parser as operator_parser
from atom_operator.kubectl_atom import _parser as plugin_parser
from tests.tools.installation.test_missing_extras import _least

Leaf = tuple[tuple[str, ...], argparse.ArgumentParser]
_PROGRAMS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "atom": build_parser,
    "atom-operator": operator_parser,
    "kubectl-atom": plugin_parser,
}
_ROOTS = {name: cache(make) for name, make in _PROGRAMS.items()}


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Leaf]:
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not nested:
        yield words, parser
        return
    for name, child in nested[0].choices.items():
        yield from leaves(child, (*words, name))


def every_leaf() -> dict[str, Leaf]:
    return {
        " ".join(words): (words, parser)
        for program, root in _ROOTS.items()
        for words, parser in leaves(root(), (program,))
    }


LEAVES = every_leaf()


def slips(name: str) -> Iterator[str]:
    """A name with one letter lost, doubled, or swapped with the next."""
    begin = len(name) - len(name.lstrip("-"))
    for index in range(begin, len(name)):
        if name[index] == "-":
            continue
        yield name[:index] + name[index + 1 :]
        yield name[:index] + 2 * name[index] + name[index + 1 :]
        if index + 1 < len(name) and "-" != name[index + 1] != name[index]:
            yield name[:index] + name[index + 1] + name[index] + name[index + 2 :]


def refusal(words: tuple[str, ...], *more: str) -> Callable[[pytest.CaptureFixture[str]], str]:
    def told(capsys: pytest.CaptureFixture[str]) -> str:
        with pytest.raises(SystemExit) as ended:
            _ROOTS[words[0]]().parse_args([*words[1:], *more])
        assert ended.value.code == 2, (words, more)
        return capsys.readouterr().err

    return told


def _taken(parser: argparse.ArgumentParser) -> set[str]:
    """The flags that a command takes, also other servers'."""
    beside = ROW_OF if isinstance(parser, FlagParser) and parser.takes_model else ()
    known = {*parser._option_string_actions, *beside}
    return known | {f"--no-{name[2:]}" for name in beside if name.startswith("--")}


@pytest.mark.parametrize("share", [41, pytest.param(11, marks=pytest.mark.whole)])
@pytest.mark.parametrize("command", LEAVES)
def test_one_wrong_letter_is_told_with_the_flag_that_was_meant(
    command: str, share: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of so many slips of each flag, of another kind and place in the next one."""
    words, parser = LEAVES[command]
    taken = _taken(parser)
    least = tuple(_least(parser))
    for number, action in enumerate(parser._actions):
        for name in [each for each in action.option_strings if each.startswith("--")]:
            for slip in list(slips(name))[number % share :: share]:
                if slip in taken:
                    continue
                said = refusal(words, *least, slip)(capsys)
                (hint,) = re.findall(rf"^  {re.escape(slip)}: did you mean (.*)\?$", said, re.M)
                assert set(hint.split(" or ")).intersection(action.option_strings), (slip, hint)


@pytest.mark.parametrize("command", LEAVES)
def test_no_message_about_a_value_names_a_function(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, parser = LEAVES[command]
    least, refused = tuple(_least(parser)), 0
    for action in parser._actions:
        if not action.option_strings or action.nargs == 0:
            continue
        if action.type in (None, Path) and action.choices is None:
            continue  # any word is a value
        name = action.option_strings[-1]
        for value in ("no-such-value", "1e", "[1"):
            line = [*words[1:], *least, f"{name}={value}"]
            with contextlib.suppress(SystemExit):
                _ROOTS[words[0]]().parse_args(line)
                continue  # it is a value of this flag, such as the name of a header
            said = capsys.readouterr().err
            assert name in said, (name, value, said)
            assert not re.search(r"invalid \S+ value", said), said
            refused += 1
    assert refused or "--log-level" not in parser._option_string_actions


def test_the_hint_is_of_the_command_that_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    for line, told in {
        "atom bench serve --num-prompt 4": "--num-prompts",
        "atom bench serve --max-concurency 4": "--max-concurrency",
        "atom replay r.json --bse-url x": "--base-url",
        "atom generate m --promt hi": "--prompt",
        "atom serve m -p 80": "--port",
        "atom preflight --chek": "--check",
        "kubectl-atom plan --filname x": "--filename",
    }.items():
        words = tuple(line.split())
        assert f"did you mean {told}?" in refusal(words)(capsys), line


def test_a_misspelt_command_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for line, told in {
        "atom srve m --port 9": "serve", "atom bench srve": "serve", "kubectl-atom plna": "plan",
    }.items():  # fmt: skip
        assert f"did you mean {told}?" in refusal(tuple(line.split()))(capsys), line


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("atom serve m --gpu-memory-utilization 90%", "gpu_memory_utilization", 0.9),
        ("atom serve m --max-model-len 32k", "max_model_len", 32000),
        ("atom serve m --max-num-seqs 1k", "max_num_seqs", 1000),
        ("atom bench serve --input-len 2K", "input_len", 2048),
        ("atom bench serve --random-range-ratio 50%", "random_range_ratio", 0.5),
        ("atom serve m --log-level DEBUG", "log_level", "debug"),
        ("atom serve m --log-level WARN", "log_level", "warning"),
        ("atom serve m --device GPU", "device", "gpu"),
        ("atom serve m --device CUDA", "device", "cuda"),
        ("atom serve m --device amd", "device", "rocm"),
    ],
)
def test_values_are_taken_as_people_write_them(line: str, name: str, value: object) -> None:
    program, *words = line.split()
    assert getattr(_ROOTS[program]().parse_args(words), name) == value
