"""Every two cores of different nodes have one connection, whatever else reaches their ports."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

from atom.config import NodePlace, ParallelConfig
from atom.model_engine.wire.cross_node_wakeup import connect_other_nodes
from atom.model_engine.wire.node_link import Frame, NodeLink
from atom.model_engine.wire.other_nodes import NodeAddress
from atom.model_engine.wire.peer_mesh import Connections, PeerMesh, TokenCount

NODES, RANKS = 3, 6


def place(node: int) -> ParallelConfig:
    return ParallelConfig(
        data_parallel_size=RANKS,
        expert_parallel=True,
        nodes=NodePlace(count=NODES, rank=node),
    )


def test_each_pair_of_cores_on_three_nodes_hears_each_other() -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(NODES) as nodes:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(NODES)
        ]
        addresses = [NodeAddress("127.0.0.1", each.getsockname()[1]) for each in listeners]
        stranger = stack.enter_context(socket.create_connection(listeners[0].getsockname()))
        NodeLink(stranger).send(Frame.HELLO)
        meeting = [
            nodes.submit(connect_other_nodes, place(node), addresses[:node], listeners[node])
            for node in range(NODES)
        ]
        found: dict[int, Connections] = {}
        for met in meeting:
            found |= met.result()
        for connection in [
            connection for connections in found.values() for connection in connections.values()
        ]:
            stack.enter_context(connection)
        pairs = [pair for pair in combinations(range(RANKS), 2) if pair[0] // 2 != pair[1] // 2]
        assert {(rank, peer) for rank in found for peer in found[rank] if rank < peer} == {*pairs}
        meshes = {rank: PeerMesh(connections) for rank, connections in found.items()}
        for rank, mesh in meshes.items():
            mesh.send(TokenCount(0, rank))
        for rank, mesh in meshes.items():
            heard: dict[int, TokenCount] = {}
            while len(heard) < len(found[rank]):
                heard.update(mesh.receive(wait=True))
            assert heard == {peer: TokenCount(0, peer) for peer in found[rank]}
        stranger.settimeout(10)
        assert stranger.recv(1) == b"", "it was let go"
