"""The first node of a group welcomes its nodes, and nothing else that reaches its port."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest

import atom
from atom.config import EngineOptions, build_config
from atom.model_engine.wire import other_nodes
from atom.model_engine.wire.first_loss import FirstLoss, LastWords
from atom.model_engine.wire.node_link import Frame, NodeLink
from atom.model_engine.wire.other_nodes import (
    NodeAddress,
    NodeHello,
    NodeOrder,
    OtherNodes,
    RanksWork,
)
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import reserved_port

STORE_PORT = 4321


def test_a_connection_that_says_nothing_keeps_no_node_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_nodes, "_HELLO_SECONDS", 0.1)
    model = str(make_tiny_checkpoint(tmp_path))
    losses: list[LastWords] = []
    with reserved_port() as port:
        options = EngineOptions.of(
            model=model, device="cpu", tensor_parallel_size=2, nnodes=2, master_port=port
        )
        nodes = OtherNodes(build_config(options), FirstLoss(losses.append))
        meeting = threading.Thread(target=nodes.meet, args=(RanksWork(STORE_PORT),))
        with socket.create_connection(("127.0.0.1", port)) as silent:
            meeting.start()
            link = NodeLink(socket.create_connection(("127.0.0.1", port)))
            hello = NodeHello(1, "another", atom.__version__, port=1234)
            link.send(Frame.HELLO, msgspec.json.encode(hello))
            frame = link.receive()
            assert frame is not None
            assert frame[0] is Frame.ORDER
            order = msgspec.json.decode(frame[1], type=NodeOrder)
            assert order.work == RanksWork(STORE_PORT)
            assert order.others == [NodeAddress("127.0.0.1", 1234)], "as it is reached"
            meeting.join()
            assert silent.recv(1) == b"", "it was let go"
        nodes.stop_listening()
        nodes.send(b"a step")
        assert link.receive() == (Frame.STEP, bytearray(b"a step"))
        assert losses == [], "a node may be silent once it is known"
        nodes.close()
        link.close()
