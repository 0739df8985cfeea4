"""Where the server listens; connections whose client never reads do not stay for ever."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from atom.entrypoints.http.listener import listen, listen_shared, url_of
from tests.support.cluster.ipv6 import needs_ipv6
from tests.support.waiting import HANG_SECONDS


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_a_connection_whose_client_never_reads_breaks() -> None:
    with (
        listen("127.0.0.1", 0, reader_timeout_seconds=0.5) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(HANG_SECONDS)
            with pytest.raises(OSError) as broken:
                _send_for_ever(connection)
            assert broken.value.errno == errno.ETIMEDOUT, "not our own timeout, the kernel's"


def _send_for_ever(connection: socket.socket) -> None:
    while True:
        connection.send(bytes(65536))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", pytest.param("::1", marks=needs_ipv6), pytest.param("::", marks=needs_ipv6)],
)
@pytest.mark.parametrize("count", [1, 2])
def test_its_url_is_where_it_is_reached(host: str, count: int) -> None:
    listeners = listen_shared(host, 0, count) if count > 1 else [listen(host, 0)]
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        parts = urlsplit(url_of(listeners[0]))
        assert parts.hostname is not None
        assert parts.port is not None
        with socket.create_connection((parts.hostname, parts.port)):
            pass


@needs_ipv6
def test_every_address_means_those_of_both_families() -> None:
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, port)):
                pass


def test_without_ipv6_every_address_is_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = socket.create_server

    def without_ipv6(address: tuple[str, int], **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return bind(address, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    with (
        listen("::", 0) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])),
    ):
        pass
