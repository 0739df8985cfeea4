"""A client that asks and leaves: what it is to wait for in between is the test's to say."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping

from tests.support.server.server_process import ServerProcess


@contextlib.contextmanager
def unanswered(
    server: ServerProcess, path: str, body: Mapping[str, object], headers: str = ""
) -> Iterator[None]:
    """A request of which nothing is read; its client leaves at the end of the block. headers:
    lines, each with its end."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n"
    head += "content-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{head}{headers}\r\n".encode() + data)
        yield
