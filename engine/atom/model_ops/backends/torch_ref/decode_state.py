"""The two ends of a decode step in plain PyTorch: inputs out of the slots, tokens into them."""

from __future__ import annotations

import torch

from atom.model_ops.backends.step_mail import LETTERS, StepMail
from atom.model_ops.slots import DecodeInputs, SlotTensors


def receive_step(mail: StepMail, slots: torch.Tensor, state: SlotTensors) -> None:
    turn = int(mail.turn[0])
    letter = mail.said[turn % LETTERS].to(slots.device).long()
    slots.copy_(letter[0, : len(slots)])
    slot, column, block = letter[1:, _real(letter[1], state)]
    state.block_tables[slot, column] = block.to(torch.int32)
    mail.turn[0] = turn + 1
    mail.turn[1] = turn % LETTERS


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
        temperature=torch.where(real, state.temperature[slots], 0.0),
        seed=torch.where(real, state.seed[slots], 0),
        sample_positions=positions + 1,
    )


def commit_tokens(
    slots: torch.Tensor,
    token_ids: torch.Tensor,
    state: SlotTensors,
    mail: StepMail | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    real = _real(slots, state)
    answer, last, grown = token_ids.unsqueeze(0), token_ids, torch.ones_like(slots)
    if counts is not None:
        answer = torch.cat([counts.unsqueeze(1), token_ids], dim=1).T
        last, grown = token_ids.gather(1, counts.unsqueeze(1) - 1).squeeze(1), counts
    state.last_token[slots[real]] = last[real]
    state.num_computed[slots[real]] += grown[real]
    if mail is not None:
        mail.answers[int(mail.turn[1]), :, : len(slots)] = answer.to(mail.answers.device)


def _real(slots: torch.Tensor, state: SlotTensors) -> torch.Tensor:
    return (slots >= 0) & (slots != state.padding_slot)
