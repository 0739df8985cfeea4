"""What a core hears of another's end, in order or not: listening, speaking, or only watching; of
one on its machine, and of one on another."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from atom.model_engine.wire.node_link import NodeLink
from atom.model_engine.wire.peer_mesh import (
    PeerLeftError,
    PeerLostError,
    PeerMesh,
    TokenCount,
    mesh_sockets,
)


class Pair:
    """Two cores of a mesh; the other one may end."""

    def __init__(self, own: socket.socket, theirs: socket.socket) -> None:
        self.own, self.other = PeerMesh({1: own}), PeerMesh({0: theirs})
        self._theirs = theirs

    def speak(self) -> None:
        """Send a count and receive the other's, as before a step. One machine refuses a message to
        who has ended, two do not: there the end is heard behind what was said."""
        self.own.send(TokenCount(0, 1))
        for _ in range(2):
            list(self.own.receive(wait=True))
            self.own.check_stay(0)

    def end(self) -> None:
        """The other's process is gone."""
        self._theirs.close()


@pytest.fixture(params=["one machine", "two machines"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        if request.param == "one machine":
            ends = mesh_sockets(range(2))
            own, theirs = ends[0][1], ends[1][0]
        else:
            own, theirs = _over_tcp()
        for connection in (own, theirs):
            stack.enter_context(connection)
        yield Pair(own, theirs)


def _over_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = NodeLink(socket.create_connection(listener.getsockname())).let_go()
        return NodeLink(listener.accept()[0]).let_go(), theirs


def test_a_count_sent_before_an_end_is_received_before_it(pair: Pair) -> None:
    pair.other.send(TokenCount(0, 3))
    pair.end()
    assert list(pair.own.receive(wait=True)) == [(1, TokenCount(0, 3))]
    with pytest.raises(PeerLostError, match="rank 1 of the data-parallel group is gone"):
        list(pair.own.receive(wait=True))


def test_who_speaks_to_one_that_has_ended_in_order_hears_that(pair: Pair) -> None:
    """It said so, and was gone before anybody listened: no failure."""
    pair.other.leave(0)
    pair.end()
    with pytest.raises(PeerLeftError):
        pair.speak()
    assert pair.own.has_left(1)


def test_who_speaks_to_one_that_was_killed_has_lost_it(pair: Pair) -> None:
    pair.other.send(TokenCount(0, 3))
    pair.end()
    with pytest.raises(PeerLostError):
        pair.speak()
    assert not pair.own.has_left(1)


def test_an_end_in_order_is_known_though_nobody_has_listened(pair: Pair) -> None:
    assert not pair.own.has_left(1)
    pair.other.leave(0)
    pair.end()
    assert pair.own.wait_lost() == 1
    assert pair.own.has_left(1)


def test_a_step_that_one_has_agreed_on_before_it_left_is_everyones(pair: Pair) -> None:
    """It has received all of its counts, though here one may be on its way still."""
    pair.other.send(TokenCount(4, 1))
    pair.other.leave(5)
    pair.end()
    assert list(pair.own.receive(wait=True)) == [(1, TokenCount(4, 1))]
    assert list(pair.own.receive(wait=True)) == []
    pair.own.check_stay(4)
    with pytest.raises(PeerLeftError):
        pair.own.check_stay(5)
