"""Drafts of rows' own tokens, their places in a step, and which of them hold: plain PyTorch."""

from __future__ import annotations

import torch

from atom.model_ops.backends.pinned_ring import PinnedRing
from atom.model_ops.backends.torch_ref.decode_state import prepare_decode
from atom.model_ops.drafts import DraftLayout, Drafts, DrawnRuns, Lookup
from atom.model_ops.slots import DecodeInputs, SlotTensors


def draft_ngrams(
    slots: torch.Tensor, wanted: torch.Tensor, state: SlotTensors, lookup: Lookup, drafts: Drafts
) -> None:
    assert state.tokens is not None, "slots keep their tokens where drafts are looked up"
    last = state.num_computed[slots].unsqueeze(1)  # the newest token's position
    width = int(last.max()) + 1
    tokens = state.tokens[slots, :width]
    ends = torch.arange(width - 1, device=slots.device)
    alive = ends < last
    matched = torch.zeros_like(alive, dtype=torch.int64)
    for back in range(min(lookup.most, width - 1)):
        # Earlier ends whose token so far back is the newest one's.
        said = tokens.gather(1, (last - back).clamp_min(0))
        alive[:, back:] &= tokens[:, : width - 1 - back] == said
        alive[:, :back] = False
        matched += alive
    # The longest match, and of these the newest.
    best = (matched * width + ends).max(dim=1, keepdim=True).values if width > 1 else last * 0
    found = (best // width >= lookup.fewest).squeeze(1)
    end = best % width
    # The continuation may run into the drafts themselves: a period continues.
    ahead = torch.arange(drafts.token_ids.shape[1], device=slots.device)
    ahead = ahead % torch.where(found, (last - end).squeeze(1), 1).unsqueeze(1)
    at = torch.where(found.unsqueeze(1), end + 1 + ahead, 0)
    drafts.token_ids.copy_(tokens.gather(1, at))
    drafts.counts.copy_(torch.where(found, wanted, 0))


def lay_out_drafts(layout: DraftLayout, state: SlotTensors) -> None:
    real = (layout.slots >= 0) & (layout.slots != state.padding_slot)
    ends = torch.where(real, 1 + layout.wanted, 0).cumsum(0)
    at = torch.arange(len(layout.row), device=ends.device)
    row = torch.searchsorted(ends, at, right=True)
    inside = at < ends[-1]
    row = torch.where(inside, row, 0)
    layout.runs.starts[0] = 0
    layout.runs.starts[1:] = ends
    layout.first.copy_((ends - 1 - layout.wanted).clamp(0, len(at) - 1))
    layout.token_slots.copy_(torch.where(inside, layout.slots[row], state.padding_slot))
    layout.row.copy_(row)
    layout.offset.copy_(torch.where(inside, at - layout.first[row], 0))


def prepare_drafted(
    slots: torch.Tensor,
    offsets: torch.Tensor,
    token_ids: torch.Tensor,
    state: SlotTensors,
    block_size: int,
) -> DecodeInputs:
    inputs = prepare_decode(slots, state, block_size)
    real = inputs.context_lens > 0
    positions = inputs.positions + torch.where(real, offsets, 0)
    index = (positions // block_size).expand(state.num_groups, -1).unsqueeze(2)
    blocks = inputs.block_tables.gather(2, index).squeeze(2).long()
    slot_mapping = blocks * block_size + positions % block_size
    return DecodeInputs(
        input_ids=torch.where(real & (offsets > 0), token_ids, inputs.input_ids),
        positions=positions,
        slot_mapping=torch.where(real, slot_mapping, -1),
        context_lens=torch.where(real, positions + 1, 0).to(torch.int32),
        block_tables=inputs.block_tables,
        temperature=inputs.temperature,
        seed=inputs.seed,
        sample_positions=positions + 1,
    )


def accept_drafts(
    drawn: DrawnRuns, drafts: Drafts, state: SlotTensors, ring: PinnedRing | None = None
) -> torch.Tensor:
    assert state.tokens is not None, "slots keep their tokens where drafts are looked up"
    slots = drawn.slots
    index = torch.arange(1 + drafts.token_ids.shape[1], device=slots.device)
    at = (drawn.first.unsqueeze(1) + index).clamp_max(len(drawn.token_ids) - 1)
    runs = drawn.token_ids[at]
    drafted = index[:-1] < drafts.counts.unsqueeze(1)
    held = drafted & (runs[:, :-1] == drafts.token_ids)
    counts = 1 + held.long().cumprod(dim=1).sum(dim=1)
    real = (slots >= 0) & (slots != state.padding_slot)
    kept = real.unsqueeze(1) & (index < counts.unsqueeze(1))
    positions = state.num_computed[slots].unsqueeze(1) + 1 + index
    row = slots.unsqueeze(1).expand_as(positions)
    state.tokens[row[kept], positions[kept]] = runs[kept].to(state.tokens.dtype)
    last = runs.gather(1, counts.unsqueeze(1) - 1).squeeze(1)
    state.last_token[slots[real]] = last[real]
    state.num_computed[slots[real]] += counts[real]
    if ring is not None:
        answer = ring.answers[int(ring.turn[1])]
        for line, said in enumerate((drawn.token_ids, counts, drafts.counts)):
            answer[line, : len(said)] = said.to(answer.device)
    return counts
