"""Connections whose client never reads do not stay for ever."""

from __future__ import annotations

import errno
import socket

import pytest

from atom.entrypoints.listener import listen

LIMIT_SECONDS = 20


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_a_connection_whose_client_never_reads_breaks() -> None:
    with (
        listen("127.0.0.1", 0, reader_timeout_seconds=0.5) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(LIMIT_SECONDS)
            with pytest.raises(OSError) as broken:
                _send_for_ever(connection)
            assert broken.value.errno == errno.ETIMEDOUT, "not our own timeout, the kernel's"


def _send_for_ever(connection: socket.socket) -> None:
    while True:
        connection.send(bytes(65536))
