"""Slots: the device's state of each running sequence, from which a decode step takes its inputs.

A running sequence has a slot. Padding rows of a captured step name the padding slot, the last one,
which belongs to no sequence. Data only; the runner declares the code that fills it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ANY_TOKENS = 2**62  # of a slot whose states cover all tokens of its row so far


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """Hold the options by which rows of slots draw tokens. temperature [slots] float32, 0 for
    greedy; seed [slots] int64; top_k [slots] int64, V for off; top_p [slots] float32, 1 for off;
    min_p [slots] float32, 0 for off."""

    temperature: torch.Tensor
    seed: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """The device's state of each slot, one entry per slot.

    last_token [slots] int64; num_computed [slots] int64: position of last_token; block_tables
    [slots, groups · blocks] int32, one group of layers after the other. num_groups: of layers.
    tokens [slots, tokens of a sequence] int32: each slot's up to last_token; None if no proposer
    reads them. state_tokens [slots] int64: the number of tokens that layers' states have taken in,
    or ANY_TOKENS; None without drafts. lora_slot [slots] int32: the slot of the row's adapter, -1
    for none; None if no adapter is served. position_delta [slots] int64: the difference of rotary
    positions from positions; None if they are equal.
    """

    last_token: torch.Tensor
    num_computed: torch.Tensor
    block_tables: torch.Tensor
    sampling: SlotSampling
    num_groups: int = 1
    tokens: torch.Tensor | None = None
    state_tokens: torch.Tensor | None = None
    lora_slot: torch.Tensor | None = None
    position_delta: torch.Tensor | None = None

    @property
    def padding_slot(self) -> int:
        return self.last_token.shape[0] - 1

    def column(self, name: str) -> torch.Tensor:
        """Find a column [slots] by its field's name, which rows that may run have."""
        found = getattr(self.sampling, name, None)
        if found is None:
            found = getattr(self, name)
        assert isinstance(found, torch.Tensor), f"no row may have a {name}"
        return found

    @property
    def max_blocks(self) -> int:
        """Return the most blocks of a sequence in one group."""
        return self.block_tables.shape[1] // self.num_groups


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of one decode step, one entry per row. Padding rows have token 0 at position 0,
    slot_mapping -1 and context 0.

    input_ids, positions [R] int64; context_lens [R] int32; by group of layers slot_mapping [G, R]
    int64 and block_tables [G, R, blocks] int32, valid as far as the row's context reaches;
    temperature [R] float32, seed [R] int64 and sample_positions [R] int64: of the token that the
    step draws.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    temperature: torch.Tensor
    seed: torch.Tensor
    sample_positions: torch.Tensor
