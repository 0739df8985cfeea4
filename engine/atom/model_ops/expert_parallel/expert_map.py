"""ExpertMap: the places of one layer's experts that may move, and how often tokens choose them.

Tokens choose experts; the exchange uses slots. A token's row in the step selects the expert's copy,
so that copies share the load. The tables and counts are tensors that captured graphs read and
write; the host decides the placement (expert_placement.py).
"""

from __future__ import annotations

import torch

from atom.model_ops.expert_parallel.eplb import Placement, first_placement
from atom.model_ops.routing import Routed
from atom.utils.forward_context import get_forward_context


class ExpertMap:
    """Maps experts to their slots. placement: the expert of each slot of all ranks; load [E] int64:
    tokens of this rank that have chosen each expert since it was zeroed."""

    def __init__(self, experts: int, redundant: int, device: torch.device) -> None:
        self.placement: Placement = ()
        self.load = torch.zeros(experts, dtype=torch.int64, device=device)
        self._slots = torch.zeros(experts, 1 + redundant, dtype=torch.int32, device=device)
        self.place(first_placement(experts, redundant))

    def place(self, placement: Placement) -> None:
        """Send tokens there from now on."""
        having: list[list[int]] = [[] for _ in range(len(self.load))]
        for slot, expert in enumerate(placement):
            having[expert].append(slot)
        columns = range(self._slots.shape[1])
        rows = [[slots[column % len(slots)] for column in columns] for slots in having]
        self._slots.copy_(torch.tensor(rows, dtype=torch.int32))
        self.placement = placement

    def slots_of(self, routed: Routed) -> Routed:
        """Convert experts to slots, and count them; a graph's padding gets no slot."""
        ids = routed.ids.long()
        copies = self._slots.shape[1]
        turn = torch.arange(len(ids), device=ids.device).remainder_(copies).unsqueeze(1)
        slots = self._slots[ids, turn]
        counted = torch.ones_like(ids)
        is_padding = _padding(len(ids))
        if is_padding is not None:
            counted = counted.masked_fill(is_padding, 0)
            slots = slots.masked_fill(is_padding, -1)
        self.load.scatter_add_(0, ids.flatten(), counted.flatten())
        return Routed(slots, routed.weights)


def _padding(tokens: int) -> torch.Tensor | None:
    """Return a mask [T, 1] of the step's tokens that belong to no row; None if it cannot be
    known."""
    context = get_forward_context()
    if context.logits_indices is not None:
        return None
    mapping = context.attention[0].slot_mapping
    return (mapping < 0).unsqueeze(1) if len(mapping) == tokens else None
