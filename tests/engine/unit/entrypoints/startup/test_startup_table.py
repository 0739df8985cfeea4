from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from atom.entrypoints.startup.next_steps import Address, next_steps
from atom.entrypoints.startup.startup_table import (
    bytes_text,
    print_startup,
    startup_rows,
)
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.model_engine.wire.engine_protocol import EngineReport
from tests.support.engine_core.front_half import (
    build_test_config,
    engine_report,
    write_model_folder,
)

CHATS = Offer("tiny", ("/v1/chat/completions", "/v1/completions"))


@pytest.fixture
def report(tmp_path: Path) -> EngineReport:
    return engine_report(build_test_config(write_model_folder(tmp_path)))


def test_the_table_tells_model_device_blocks_tokens_and_how_many_fit(report: EngineReport) -> None:
    rows = dict(startup_rows(report))
    assert rows["model"] == "tiny"
    assert rows["device"].startswith("cpu")
    assert "100 blocks of 16 tokens = 1,600 tokens" in rows["KV cache"]
    assert "limited by memory" in rows["KV cache"]
    assert rows["fits at 64 tokens each"] == "25 sequences"
    assert "parallel" not in rows


def test_backends_show_the_common_one_and_each_that_differs(report: EngineReport) -> None:
    assert "backends" not in dict(startup_rows(report))  # a reader of every start needs none
    assert dict(startup_rows(report, verbose=True))["backends"] == "torch_ref"
    mixed = msgspec.structs.replace(report, backends={"a": "fast", "b": "fast", "c": "torch_ref"})
    assert dict(startup_rows(mixed, verbose=True))["backends"] == "fast (2 ops), c=torch_ref"


def test_parallelism_shows_when_there_is_any(report: EngineReport) -> None:
    wide = msgspec.structs.replace(report, tensor_parallel_size=8)
    assert dict(startup_rows(wide))["parallel"] == "tensor 8, data 1"


def test_a_log_without_a_terminal_gets_whole_rows(
    report: EngineReport, capsys: pytest.CaptureFixture[str]
) -> None:
    print_startup([(report, CHATS)], Address("http://0.0.0.0:8000"))
    printed = capsys.readouterr().err
    assert "http://0.0.0.0:8000" in printed
    kv_row = next(line for line in printed.splitlines() if "1,600 tokens" in line)
    assert "limited by memory" in kv_row


def test_what_follows_the_table_can_be_opened_and_pasted_as_it_stands(
    report: EngineReport, capsys: pytest.CaptureFixture[str]
) -> None:
    print_startup([(report, CHATS)], Address("http://0.0.0.0:8000", needs_key=True))
    browser, shell = capsys.readouterr().err.splitlines()[-2:]
    assert browser.endswith(" http://127.0.0.1:8000/")
    words = shlex.split(shell.partition("shell")[2])
    assert words[0] == "curl"
    assert "http://127.0.0.1:8000/v1/chat/completions" in words
    assert json.loads(words[-1])["messages"]
    assert "Authorization: Bearer $KEY" in words


def test_every_address_of_ipv6_is_shown_as_one_that_opens() -> None:
    browser, shell = next_steps(Address("https://[::]:8000", console=False), [CHATS])
    assert browser.endswith(" https://[::1]:8000/docs")
    assert "Authorization" not in shell


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (42 * 2**20, "42.0 MiB"),
        (1020 * 2**20, "1020 MiB"),
        (3 * 2**30, "3.00 GiB"),
        (5 * 2**50, "5120 TiB"),
    ],
)
def test_sizes_are_readable(size_bytes: int, text: str) -> None:
    assert bytes_text(size_bytes) == text
