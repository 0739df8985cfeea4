"""Sockets between cores of different nodes, for the token counts that they send each other
(PeerMesh).

A pair's is a TCP connection as NodeLink's: small messages go at once, and the end of a process or
of a machine is the end of the connection. Who starts the cores makes them, the node of the higher
rank calling, and each core inherits its own: so no core knows on which node another is.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from atom.config import ParallelConfig
from atom.model_engine.wire.node_link import Frame, NodeLink
from atom.model_engine.wire.other_nodes import NodeAddress
from atom.model_engine.wire.peer_mesh import Connections

_ANSWER_SECONDS = 5.0


class MeshEnds(msgspec.Struct, frozen=True):
    """The two ends of a connection. rank: of the core that calls; peer: of the other."""

    rank: int
    peer: int


def connect_other_nodes(
    parallel: ParallelConfig, lower: Sequence[NodeAddress], listener: socket.socket
) -> dict[int, Connections]:
    """Connect each rank to the ranks of other nodes. lower: the addresses of the nodes of lower
    ranks, in order; listener: accepts those of higher ranks. Raises `OSError`."""
    found: dict[int, Connections] = {rank: {} for rank in parallel.ranks_here}
    for node, address in enumerate(lower):
        for rank, connections in found.items():
            connections.update(
                (peer, _call(address, rank, peer)) for peer in parallel.ranks_of(node)
            )
    missing = {
        (peer, rank)
        for peer in range(parallel.ranks_here.stop, parallel.data_parallel_size)
        for rank in found
    }
    while missing:
        ends, connection = _next_call(listener)
        if ends is None or (ends.rank, ends.peer) not in missing:
            connection.close()
            continue
        missing.remove((ends.rank, ends.peer))
        found[ends.peer][ends.rank] = connection
    return found


def _call(address: NodeAddress, rank: int, peer: int) -> socket.socket:
    try:
        connection = socket.create_connection((address.host, address.port), _ANSWER_SECONDS)
        link = NodeLink(connection)
        link.send(Frame.CONNECTION, msgspec.json.encode(MeshEnds(rank, peer)))
    except OSError as error:
        raise OSError(f"rank {peer} at {address.host}:{address.port}: {error}") from error
    return link.let_go()


def _next_call(listener: socket.socket) -> tuple[MeshEnds | None, socket.socket]:
    """Accept the next connection, and read its ends; None if it does not state them."""
    link = NodeLink(listener.accept()[0])
    link.wait_at_most(_ANSWER_SECONDS)
    frame = link.receive()
    connection = link.let_go()
    if frame is None or frame[0] is not Frame.CONNECTION:
        return None, connection
    connection.settimeout(None)
    try:
        return msgspec.json.decode(frame[1], type=MeshEnds), connection
    except msgspec.DecodeError:
        return None, connection
