"""Move experts' weights between ranks, in place: graphs and operations keep their tensors.

Every rank knows the old and the new placement, and so the data that each rank sends. The moves of a
tensor are one exchange of slots' rows, in the order of their targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom.collectives.expert_links import ExpertLinks
from atom.model_ops.expert_parallel.eplb import Placement, sources


def move_experts(
    tensors: Sequence[torch.Tensor], old: Placement, new: Placement, links: ExpertLinks
) -> int:
    """Bring this rank's slots of each tensor [slots, ..] from one placement to the other; how many
    slots of all ranks changed. Every rank calls it with the same placements."""
    each = len(old) // links.size
    moves = sorted(sources(old, new, links.size).items())
    going = [_between(moves, links.rank, rank, each) for rank in range(links.size)]
    coming = [_between(moves, rank, links.rank, each) for rank in range(links.size)]
    leaving = [source % each for moved in going for _, source in moved]
    arriving = [target % each for moved in coming for target, _ in moved]
    for tensor in tensors if moves else ():
        # Types of a byte are bytes: assignments, and exchanges of all types, know few.
        stored = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        rows = stored[leaving].contiguous().flatten(1)
        received = links.exchange(
            rows.view(torch.uint8), [*map(len, going)], [*map(len, coming)]
        ).view(stored.dtype)
        stored[arriving] = received.unflatten(1, stored.shape[1:])
    return len(moves)


def _between(
    moves: Sequence[tuple[int, int]], sender: int, receiver: int, each: int
) -> list[tuple[int, int]]:
    """List the (slot, slot that has its expert) that go from one rank to the other."""
    return [
        (target, source)
        for target, source in moves
        if source // each == sender and target // each == receiver
    ]
