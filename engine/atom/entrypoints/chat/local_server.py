"""A server of one model for a conversation: `atom serve` as a child process on a free port."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

from atom.entrypoints.chat.client import ChatError
from atom.entrypoints.http.client_url import server_url
from atom.errors import ConfigError

_LOOK_SECONDS = 0.2
_END_SECONDS = 30.0
_STDERR = 2  # the file descriptor


@contextlib.contextmanager
def url_of(target: str, flags: Sequence[str]) -> Iterator[str]:
    """Yield the URL of a server: `target` itself, or that of a model that is served meanwhile with
    these flags. Raises `AtomError`."""
    if target.startswith(("http://", "https://")):
        try:
            yield server_url(target)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(str(error)) from None
        return
    with served(target, flags) as url:
        yield url


@contextlib.contextmanager
def served(model: str, flags: Sequence[str]) -> Iterator[str]:
    """Serve a model, with flags of `atom serve`, and yield the server's URL once it is ready. What
    the server prints goes to the error output. Raises `ChatError` if it does not start."""
    port = _free_port()
    command = [
        *(sys.executable, "-m", "atom.entrypoints.cli", "serve", model),
        *("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", *flags),
    ]
    # In a session of its own, so that Ctrl-C stops an answer and not the server.
    with subprocess.Popen(command, stdout=_STDERR, start_new_session=True) as process:
        try:
            _wait_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers; a start may take as long as its model is large."""
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200 and json.load(answer):
                    return
        time.sleep(_LOOK_SECONDS)
    raise ChatError(f"the server ended with exit code {process.returncode}; its words are above")
