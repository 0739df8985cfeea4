"""What a core hears of another's end, in order or not: listening, speaking, or only watching."""

from __future__ import annotations

import socket

import pytest

from atom.model_engine.wire.peer_mesh import (
    PeerLeftError,
    PeerLostError,
    PeerMesh,
    Word,
    mesh_sockets,
)


class Pair:
    """Two cores of a mesh; the other one may end."""

    def __init__(self) -> None:
        own, theirs = mesh_sockets(2)
        self.own, self.other = PeerMesh(own), PeerMesh(theirs)
        self._theirs: socket.socket = theirs[0]

    def end(self) -> None:
        """The other's process is gone."""
        self._theirs.close()


def test_a_word_that_was_said_before_an_end_is_heard_before_it() -> None:
    pair = Pair()
    pair.other.say(Word(0, 3))
    pair.end()
    assert list(pair.own.hear(wait=True)) == [(1, Word(0, 3))]
    with pytest.raises(PeerLostError, match="rank 1 of the data-parallel group is gone"):
        list(pair.own.hear(wait=True))


def test_who_speaks_to_one_that_has_ended_in_order_hears_that() -> None:
    """It said so, and was gone before anybody listened: no failure."""
    pair = Pair()
    pair.other.leave(0)
    pair.end()
    with pytest.raises(PeerLeftError):
        pair.own.say(Word(0, 1))
    assert pair.own.has_left(1)


def test_who_speaks_to_one_that_was_killed_has_lost_it() -> None:
    pair = Pair()
    pair.other.say(Word(0, 3))
    pair.end()
    with pytest.raises(PeerLostError):
        pair.own.say(Word(0, 1))
    assert not pair.own.has_left(1)


def test_an_end_in_order_is_known_though_nobody_has_listened() -> None:
    pair = Pair()
    assert not pair.own.has_left(1)
    pair.other.leave(0)
    pair.end()
    assert pair.own.wait_lost() == 1
    assert pair.own.has_left(1)


def test_a_step_that_one_has_agreed_on_before_it_left_is_everyones() -> None:
    """Whose words it has all heard, though here one may be on its way still."""
    pair = Pair()
    pair.other.say(Word(4, 1))
    pair.other.leave(5)
    pair.end()
    assert list(pair.own.hear(wait=True)) == [(1, Word(4, 1))]
    assert list(pair.own.hear(wait=True)) == []
    pair.own.check_stay(4)
    with pytest.raises(PeerLeftError):
        pair.own.check_stay(5)
