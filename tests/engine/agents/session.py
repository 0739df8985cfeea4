"""One session of a coding agent that nobody here wrote, with the scripted model behind the real
server: it reads a file, edits it, runs a command and ends.

The model's part is written by the test in the markup of a family, by the names that the agent gives
its tools. The agent is a process of its own, in a folder of its own and with nothing of the user's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.answer_parsing.written import WRITERS, plain
from tests.support.waiting import HANG_SECONDS

TASK = "Say goodbye in greeting.txt instead of hello, and count its characters."
BEFORE, AFTER = "hello\n", "goodbye\n"
COUNT = "wc -c < greeting.txt > count.txt"
DONE = "All done."
SESSION_SECONDS = 2 * HANG_SECONDS


def call(tool: str, **arguments: Any) -> str:
    """A call as the scripted model writes it."""
    return WRITERS["hermes"][1]([(tool, arguments)], plain)


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Workplace:
    """folder: what the agent works on. home: where it keeps what is its own."""

    folder: Path
    home: Path

    @property
    def greeting(self) -> str:
        return (self.folder / "greeting.txt").read_text()

    @property
    def count(self) -> str:
        return (self.folder / "count.txt").read_text().strip()

    async def run(self, program: Path, words: Sequence[str], env: Mapping[str, str]) -> Ended:
        """One run of the agent to its end."""
        check_installed(program)
        process = await asyncio.create_subprocess_exec(
            program,
            *words,
            cwd=self.folder,
            env={**_clean_environment(self.home), **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), SESSION_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return Ended(process.returncode, output.decode(errors="replace"))


def check_installed(program: Path) -> None:
    assert program.exists(), f"{program} is missing; run `make agents`"


def workplace(folder: Path) -> Workplace:
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    (work / "greeting.txt").write_text(BEFORE)
    return Workplace(work, home)


def _clean_environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    folders = ("CONFIG", "DATA", "CACHE", "STATE")
    return {
        **kept,
        **{f"XDG_{name}_HOME": str(home / name.lower()) for name in folders},
        "HOME": str(home),
        "TERM": "dumb",
        "NO_COLOR": "1",
    }
