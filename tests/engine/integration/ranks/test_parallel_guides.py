"""What the guides on parallelism say to type is what the engine takes, and it serves."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from atom.entrypoints.flags.engine_args import options_from_args
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.serve import add_serve_arguments
from tests.support.server.server_process import START_SECONDS, command_environment, reserved_port
from tests.support.waiting import HANG_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[4]
GUIDES = ("multi-node", "parallelism")
MODEL = "examples/models/atom-tiny"


def commands(guide: str) -> list[list[str]]:
    """The words behind `atom serve` of each line of the guide's shell blocks."""
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in text.split("```bash\n")[1:]]
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("atom serve")]


def parsed(words: list[str]) -> argparse.Namespace:
    parser = FlagParser()
    add_serve_arguments(parser)
    return parser.parse_args(words)


def test_the_guides_name_flags_that_there_are() -> None:
    nodes = [options_from_args(parsed(words)) for words in commands("multi-node")]
    assert [(one.nodes.count, one.nodes.rank) for one in nodes] == [(2, 0), (2, 1)] * 2
    for first, second in (nodes[:2], nodes[2:]):
        assert replace(second, nodes=replace(second.nodes, rank=0)) == first
    ranks = [one.parallel for one in nodes[::2]]
    assert [(each.tensor_parallel_size, each.data_parallel_size) for each in ranks] == [
        (2, 1),
        (1, 16),
    ]
    first, *_ = [options_from_args(parsed(words)) for words in commands("parallelism")]
    assert (first.parallel.tensor_parallel_size, first.nodes.count) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_what_a_guide_says_to_type_serves(guide: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        port, meeting = (stack.enter_context(reserved_port()) for _ in range(2))
        processes = []
        # Those that this machine can follow; the other models are not in the repository.
        for words in (words for words in commands(guide) if MODEL in words):
            used = [str(meeting) if word == "29500" else word for word in words]
            processes.append(
                stack.enter_context(_running([*used, "--server-port", str(port)], log))
            )

        def healthy() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return False

        wait_until(healthy, "the server is ready", START_SECONDS)
        # The demo model answers questions; a bare text it ends at once.
        asked = [{"role": "user", "content": "What is ATOM?"}]
        body = {"messages": asked, "max_tokens": 8, "temperature": 0}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        answer = httpx.post(url, json=body, timeout=120)
        assert answer.json()["choices"][0]["message"]["content"]
        processes[0].terminate()
        assert {process.wait(HANG_SECONDS) for process in processes} == {0}, log.read_text()


@contextlib.contextmanager
def _running(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server of these words; killed at the end if it still runs."""
    command = [sys.executable, "-m", "atom.entrypoints.openai_server", *words]
    environment = command_environment()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
