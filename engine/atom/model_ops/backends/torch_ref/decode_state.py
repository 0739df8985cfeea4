"""The two ends of a decode step in plain PyTorch: inputs out of the slots, tokens into them."""

from __future__ import annotations

import torch

from atom.model_ops.backends.pinned_ring import RING_ENTRIES, PinnedRing
from atom.model_ops.drafts import keep_newest
from atom.model_ops.slots import DecodeInputs, SlotTensors


def receive_step(
    ring: PinnedRing,
    slots: torch.Tensor,
    state: SlotTensors,
    wanted: torch.Tensor | None = None,
) -> None:
    turn = int(ring.turn[0])
    entry = ring.said[turn % RING_ENTRIES].to(slots.device).long()
    slots.copy_(entry[0, : len(slots)])
    if wanted is not None:
        wanted.copy_(entry[4, : len(slots)])
    slot, column, block = entry[1:4, _real(entry[1], state)]
    state.block_tables[slot, column] = block.to(torch.int32)
    ring.turn[0] = turn + 1
    ring.turn[1] = turn % RING_ENTRIES


def prepare_decode(slots: torch.Tensor, state: SlotTensors, block_size: int) -> DecodeInputs:
    real = _real(slots, state)
    slots = torch.where(real, slots, state.padding_slot)
    positions = torch.where(real, state.num_computed[slots], 0)
    rows = len(slots)
    tables = state.block_tables[slots].view(rows, state.num_groups, -1).transpose(0, 1)
    index = (positions // block_size).expand(state.num_groups, -1).unsqueeze(2)
    blocks = tables.gather(2, index).squeeze(2).long()  # [G, R]
    slot_mapping = blocks * block_size + positions % block_size
    return DecodeInputs(
        input_ids=torch.where(real, state.last_token[slots], 0),
        positions=positions,
        slot_mapping=torch.where(real, slot_mapping, -1),
        context_lens=torch.where(real, positions + 1, 0).to(torch.int32),
        block_tables=tables.contiguous(),
        temperature=torch.where(real, state.sampling.temperature[slots], 0.0),
        seed=torch.where(real, state.sampling.seed[slots], 0),
        sample_positions=positions + 1,
    )


def commit_tokens(
    slots: torch.Tensor,
    token_ids: torch.Tensor,
    state: SlotTensors,
    ring: PinnedRing | None = None,
) -> None:
    real = _real(slots, state)
    state.last_token[slots[real]] = token_ids[real]
    state.num_computed[slots[real]] += 1
    if state.tokens is not None:
        keep_newest(slots[real], state)
    if ring is not None:
        ring.answers[int(ring.turn[1]), 0, : len(slots)] = token_ids.to(ring.answers.device)


def _real(slots: torch.Tensor, state: SlotTensors) -> torch.Tensor:
    return (slots >= 0) & (slots != state.padding_slot)
