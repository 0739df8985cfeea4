"""A real MCP server in a process of its own (tests/pages/programs/mcp_tools.py)."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.engine.agents.session import check_installed
from tests.support.waiting import HANG_SECONDS, wait_until
from tools.pinned_environments import CLIENTS, python_bin

_PROGRAM = Path(__file__).parents[2] / "pages/programs/mcp_tools.py"


@contextlib.contextmanager
def mcp_server(port: int, answers: str = "sse", pages: str = "shared") -> Iterator[str]:
    """Yield its address. answers: their form, json or sse; pages: shared; closed if no page of
    another origin may call it; signed if it asks for OAuth (its token is signed-in); entered if it
    is its own authorisation server."""
    python = python_bin(CLIENTS) / "python"
    check_installed(python)
    command = [str(python), str(_PROGRAM), str(port), answers, pages]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), "the MCP server answers")
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(HANG_SECONDS)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/nothing", timeout=HANG_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
