"""Grammars are compiled in a process of their own, within bounds; the engine core is not harmed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.grammar_compiler import (
    CompilerLostError,
    GrammarCompiler,
    GrammarRefusedError,
)
from atom.model_engine.structured_output.grammar_library import LibraryMissingError
from atom.structured_outputs import GrammarSpec
from tests.support.models.byte_tokenizer import write_byte_tokenizer
from tests.support.processes import children_that_run, command_of, has_ended
from tests.support.waiting import HANG_SECONDS, wait_until

_COSTLY = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}? r{i + 1}?" for i in range(100))
TOO_COSTLY = GrammarSpec("grammar", f"root ::= r0\n{_COSTLY}\nr100 ::= [a-z ]*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return folder


Make = Callable[..., GrammarCompiler]


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    made: list[GrammarCompiler] = []

    def build(on_done: Callable[[], None] = lambda: None, **limits: Any) -> GrammarCompiler:
        setup = CompilerSetup(
            tokenizer_folder=str(folder), vocab_size=320, end_token_ids=[291], **limits
        )
        made.append(GrammarCompiler(setup, on_done))
        return made[-1]

    yield build
    for compiler in made:
        compiler.close()


def servers() -> list[psutil.Process]:
    return children_that_run("compile_server")


def socket_path(server: psutil.Process) -> Path:
    return Path(command_of(server).split()[-1])


def test_nothing_is_started_before_the_first_grammar_and_nothing_left_after(make: Make) -> None:
    compiler = make()
    assert servers() == []
    compiler.compile(GrammarSpec("regex", "a+"), "").result(HANG_SECONDS)
    (server,) = servers()
    assert not any("torch" in file.path for file in server.memory_maps())
    compiler.close()
    assert not server.is_running()


def test_the_same_grammar_is_compiled_once(make: Make) -> None:
    told = threading.Semaphore(0)
    compiler = make(told.release)
    first = compiler.compile(GrammarSpec("regex", "a+"), "")
    assert compiler.compile(GrammarSpec("regex", "a+"), "") is first
    assert first.result(HANG_SECONDS).size_bytes > 0
    assert told.acquire(timeout=HANG_SECONDS)
    assert compiler.compile(GrammarSpec("regex", "b+"), "") is not first


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (GrammarSpec("regex", "(a"), "parenthesis is not closed"),
        (GrammarSpec("regex", "(?=a)b"), "a lookahead is not kept"),
        (GrammarSpec("grammar", "root ::= other"), "Rule 'other' not found"),
        (GrammarSpec("grammar", "root ::= " + "(" * 9000 + '"a"' + ")" * 9000), "too deep"),
        (GrammarSpec("json", '{"type": "colour"}'), "type at $ must be one or more of null"),
    ],
)
def test_the_reason_against_a_grammar_is_told(make: Make, spec: GrammarSpec, reason: str) -> None:
    with pytest.raises(GrammarRefusedError) as caught:
        make().compile(spec, "").result(HANG_SECONDS)
    assert reason in str(caught.value)


@pytest.mark.parametrize("limits", [{"limit_cpu_seconds": 1}, {"limit_memory_bytes": 64 << 20}])
def test_a_compilation_beyond_its_bounds_ends_and_others_go_on(
    make: Make, limits: dict[str, int]
) -> None:
    compiler = make(**limits)
    costly = compiler.compile(TOO_COSTLY, "")
    cheap = compiler.compile(GrammarSpec("regex", "[0-9]{4}"), "")
    assert cheap.result(HANG_SECONDS).size_bytes > 0
    with pytest.raises(GrammarRefusedError, match="make it smaller"):
        costly.result(HANG_SECONDS)
    assert compiler.compile(TOO_COSTLY, "") is costly  # refused at once the next time
    assert len(servers()) == 1


def test_grammars_that_wait_while_it_closes_start_no_other_server(make: Make) -> None:
    compiler = make()
    waiting = [compiler.compile(GrammarSpec("regex", f"{entry}+"), "") for entry in "abcdef"]
    wait_until(lambda: bool(servers()), "it starts")
    compiler.close()
    wait_until(lambda: all(future.done() for future in waiting), "they have ended")
    assert servers() == []


def test_a_server_that_died_is_replaced(make: Make) -> None:
    compiler = make()
    compiler.compile(GrammarSpec("regex", "a"), "").result(HANG_SECONDS)
    (first,) = servers()
    first.kill()
    wait_until(lambda: has_ended(first), "it is dead")
    compiler.compile(GrammarSpec("regex", "b"), "").result(HANG_SECONDS)
    (second,) = servers()
    assert second.pid != first.pid


def test_a_server_that_is_not_reached_is_replaced_before_it_is_seen_to_have_ended(
    make: Make,
) -> None:
    compiler = make()
    compiler.compile(GrammarSpec("regex", "a+"), "").result(HANG_SECONDS)
    (server,) = servers()
    socket_path(server).unlink()  # as when a process has closed its sockets and ends
    with pytest.raises(CompilerLostError):
        compiler.compile(GrammarSpec("regex", "b+"), "").result(HANG_SECONDS)
    compiler.compile(GrammarSpec("regex", "b+"), "").result(HANG_SECONDS)
    assert servers() != [server]


def test_a_server_that_dies_meanwhile_fails_its_grammar_for_this_time_only(make: Make) -> None:
    compiler = make(limit_cpu_seconds=30)
    compiler.compile(GrammarSpec("regex", "a"), "").result(HANG_SECONDS)
    (server,) = servers()
    socket_path(server).unlink()  # nobody can reach it any more, as if it were gone
    lost = compiler.compile(GrammarSpec("regex", "b"), "")
    with pytest.raises(CompilerLostError, match="send it again"):
        lost.result(HANG_SECONDS)
    server.kill()
    wait_until(lambda: has_ended(server), "it is dead")
    assert compiler.compile(GrammarSpec("regex", "b"), "").result(HANG_SECONDS).size_bytes > 0


def test_without_the_library_every_grammar_is_refused_with_the_reason(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "llguidance.py").write_text("raise ImportError('no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LibraryMissingError, match="pip install llguidance"):
        make().compile(GrammarSpec("regex", "a"), "").result(HANG_SECONDS)
    assert servers() == []


def test_a_tokenizer_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    setup = CompilerSetup(tokenizer_folder=str(tmp_path), vocab_size=320, end_token_ids=[])
    compiler = GrammarCompiler(setup, lambda: None)
    with pytest.raises(LibraryMissingError, match=r"tokenizer.json: missing"):
        compiler.compile(GrammarSpec("regex", "a"), "").result(HANG_SECONDS)
    compiler.close()
