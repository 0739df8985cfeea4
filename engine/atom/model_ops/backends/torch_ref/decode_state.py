"""The two ends of a decode step in plain PyTorch: inputs out of the slots, tokens into them."""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import DecodeInputs, SlotTensors


def prepare_decode(
    slots: torch.Tensor, appends: torch.Tensor, state: SlotTensors, block_size: int
) -> DecodeInputs:
    appended = _real(appends[0], state)
    slot, index, block = appends[:, appended]
    state.block_tables[slot, index] = block.to(torch.int32)

    real = _real(slots, state)
    slots = torch.where(real, slots, state.padding_slot)
    positions = torch.where(real, state.num_computed[slots], 0)
    tables = state.block_tables[slots]
    blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    slot_mapping = blocks * block_size + positions % block_size
    return DecodeInputs(
        input_ids=torch.where(real, state.last_token[slots], 0),
        positions=positions,
        slot_mapping=torch.where(real, slot_mapping, -1),
        context_lens=torch.where(real, positions + 1, 0).to(torch.int32),
        block_tables=tables,
        temperature=torch.where(real, state.temperature[slots], 0.0),
        seed=torch.where(real, state.seed[slots], 0),
        sample_positions=positions + 1,
    )


def commit_tokens(slots: torch.Tensor, token_ids: torch.Tensor, state: SlotTensors) -> None:
    real = _real(slots, state)
    state.last_token[slots[real]] = token_ids[real]
    state.num_computed[slots[real]] += 1


def _real(slots: torch.Tensor, state: SlotTensors) -> torch.Tensor:
    return (slots >= 0) & (slots != state.padding_slot)
