"""Every flag of the other servers is taken, or refused with a remedy that is true."""

from __future__ import annotations

import argparse
import re

import pytest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.flags.flag_row import FlagRow, FlagVerdict
from atom.entrypoints.flags.flag_words import read_words
from atom.entrypoints.flags.other_flags import OTHER_FLAGS, ROW_OF
from tests.support.peers import FLAG_LISTS, flags_of

LISTS = (*FLAG_LISTS, "typed")


def serve_parser() -> FlagParser:
    (commands,) = [
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    found = commands.choices["serve"]
    assert isinstance(found, FlagParser)
    return found


PARSER = build_parser()
OURS = serve_parser()._option_string_actions


def what_is_said_of(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The errors of a line; nothing when it is taken."""
    try:
        PARSER.parse_args(["serve", "m", *line])
    except SystemExit:
        return capsys.readouterr().err
    return ""


@pytest.mark.parametrize("peer", LISTS)
def test_no_flag_of_another_server_is_just_unknown(
    peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = flags_of(peer)
    assert len(flags) > 30
    for flag in flags:
        said = what_is_said_of([flag], capsys) + what_is_said_of([flag, "1"], capsys)
        row = ROW_OF.get(flag)
        assert flag in OURS or row is not None, flag
        if row is not None and row.verdict is FlagVerdict.REFUSED:
            assert said.count(f"\n  {flag}: {row.note}") == 2
        # The value of a switch is the only word that may be left over.
        assert "unrecognized" not in said.replace("unrecognized arguments: 1\n", ""), flag


@pytest.mark.parametrize("row", OTHER_FLAGS, ids=lambda row: row.flags[0])
def test_what_a_row_names_is_there(row: FlagRow) -> None:
    """Remedies name flags of ours, and reasons too; none of its own flags is one of ours."""
    assert not [flag for flag in row.flags if flag in OURS]
    named = re.findall(r"--[a-z][a-z-]+", row.note.replace("--help=server", ""))
    assert not [flag for flag in named if flag not in OURS]
    if row.verdict is FlagVerdict.SAME:
        assert row.note in OURS


def test_each_flag_has_one_row() -> None:
    flags = [flag for row in OTHER_FLAGS for flag in row.flags]
    assert not {flag for flag in flags if flags.count(flag) > 1}
    assert all(row.note for row in OTHER_FLAGS)


def test_no_remedy_says_which_models_there_are() -> None:
    """It would be untrue with the next family."""
    assert not {row.note for row in OTHER_FLAGS if "of this version" in row.note}


@pytest.mark.parametrize("row", [row for row in OTHER_FLAGS if row.verdict is FlagVerdict.UNNEEDED])
def test_an_unneeded_flag_is_taken_and_told_to_be_without_effect(row: FlagRow) -> None:
    for flag in row.flags:
        for value in row.values or ("",):
            for line in (
                [flag, value] if value else [flag],
                [f"{flag}={value}" if value else flag],
            ):
                args = PARSER.parse_args(["serve", "m", *line, "--port", "9"])
                assert [(note.flag, note.note) for note in args.unneeded_flags] == [
                    (flag, row.note)
                ]
                assert args.port == 9


def test_the_value_of_an_unneeded_flag_must_be_one_that_changes_nothing() -> None:
    for row in OTHER_FLAGS:
        if row.verdict is FlagVerdict.UNNEEDED and row.values:
            read = read_words([row.flags[0], "something-else", "--port", "9"])
            assert read.words == ("--port", "9")
            assert row.note in read.refused[0].note
            assert read_words([row.flags[0], "--port", "9"]).refused


def test_the_other_side_of_a_switch_that_is_not_here_is_taken() -> None:
    read = read_words(["--no-fully-sharded-loras", "--no-enable-memory-saver", "--port", "1"])
    assert read.words == ("--port", "1")
    told = [note.flag for note in read.unneeded]
    assert told == ["--no-fully-sharded-loras", "--no-enable-memory-saver"]


def test_what_is_so_in_any_case_cannot_be_turned_off() -> None:
    read = read_words(["--no-enable-chunked-prefill", "--no-async-scheduling"])
    assert len(read.refused) == 2
    assert "--scheduling-policy" in read.refused[0].note


def test_all_wrong_flags_of_a_line_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = what_is_said_of(
        ["--fully-sharded-loras", "--lora-target-modules", "a", "b", "--prot", "9", "-O3",
         "--swap-space=4"],
        capsys,
    )  # fmt: skip
    for flag in ("--fully-sharded-loras", "--lora-target-modules", "-O3", "--swap-space"):
        assert f"\n  {flag}: " in said
    assert "--kv-offloading-size GIB" in said
    assert "\n  --prot: did you mean --port?" in said


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--prot", "--port"), ("--max-model-length", "--max-model-len"), ("--modle", "--model"),
        ("--tensor-paralel-size", "--tensor-parallel-size"), ("--api-keys", "--api-key"),
        ("--served-model-names", "--served-model-name"),
        ("--gpu-mem-utilization", "--gpu-memory-utilization"),
        ("--enable-prefix-cache", "--enable-prefix-caching"),
    ],
)  # fmt: skip
def test_a_misspelled_flag_is_told_with_the_one_that_was_meant(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"\n  {word}: did you mean {meant}?" in what_is_said_of([word, "1"], capsys)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("sevre", "serve"), ("server", "serve"), ("generat", "generate"), ("benhc", "bench")],
)
def test_a_misspelled_command_is_told_with_the_one_that_was_meant(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([word])
    assert f"did you mean {meant}?" in capsys.readouterr().err
