"""A core of another node speaks with a client over TCP as it does over files, and hears its end."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
import zmq

from atom.model_engine.wire.core_sockets import ClientLostError, CoreSockets, open_socket
from atom.model_engine.wire.engine_protocol import (
    ExecutorFailedBody,
    ProgressBody,
    ShutdownBody,
    decode_from_rank,
    encode,
    identity_of,
)
from atom.model_engine.wire.node_ports import far_endpoints, listen_to_nodes
from tests.support.waiting import HANG_SECONDS

RANK = 1


def _hosts() -> list[str]:
    with (
        contextlib.suppress(OSError),
        socket.create_server(("::1", 0), family=socket.AF_INET6),
    ):
        return ["127.0.0.1", "::1"]
    return ["127.0.0.1"]


class Client:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.requests = open_socket(context, zmq.ROUTER)
        self.outputs = open_socket(context, zmq.PULL)
        self.ports = listen_to_nodes(self.requests, self.outputs)

    def hear(self, own: zmq.Socket[bytes]) -> object:
        assert own.poll(1000 * int(HANG_SECONDS)), "a message"
        rank, body = decode_from_rank(own.recv_multipart(), RANK + 1)
        assert rank == RANK
        return body

    def close(self) -> None:
        self.requests.close()
        self.outputs.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


@pytest.mark.parametrize("host", _hosts())
def test_what_a_core_says_and_hears_crosses_nodes(
    host: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    client = Client(context)
    core = CoreSockets(context, [far_endpoints(host, client.ports)], RANK)
    core.announce(ProgressBody("ready", 1.0))
    assert client.hear(client.requests) == ProgressBody("ready", 1.0)
    client.requests.send_multipart([identity_of(RANK), *encode(ShutdownBody())])
    core.wait()
    assert list(core.receive()) == [ShutdownBody()]
    core.send_all(ProgressBody("going on", 0.5))
    assert client.hear(client.outputs) == ProgressBody("going on", 0.5)
    core.say_last(ExecutorFailedBody("why", user_error=False))
    assert client.hear(client.outputs) == ExecutorFailedBody("why", user_error=False)
    assert list(core.receive()) == [], "a connection that was closed here is none that has ended"
    client.close()
    core.wait()
    with pytest.raises(ClientLostError, match="the first node"):
        list(core.receive())
    core.close()
