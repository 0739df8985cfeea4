"""The lines that a start prints after its table, pasted into a shell as a person does."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence

from atom.entrypoints.startup.next_steps import Address, next_steps
from atom.entrypoints.startup.supported_endpoints import Offer
from tests.support.waiting import HANG_SECONDS

_SHELL = "ask from a shell"


def shell_step(printed: str) -> str:
    """The command among the lines of a start."""
    (found,) = [line for line in printed.splitlines() if line.startswith(_SHELL)]
    return found.removeprefix(_SHELL).strip()


def pasted(printed: str, key: str = "") -> str:
    """Run the command of a start's lines in a shell, and return the body of the answer; an HTTP
    error fails."""
    command = shell_step(printed).replace("curl", "curl --silent --show-error --fail-with-body", 1)
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "KEY": key},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


async def pasted_at(address: Address, offers: Sequence[Offer], key: str = "") -> str:
    """Do the same with a server in this process's event loop."""
    return await asyncio.to_thread(pasted, "\n".join(next_steps(address, offers)), key)
