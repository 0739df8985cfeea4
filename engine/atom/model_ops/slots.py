"""Slots: what the device keeps of each running sequence, and a decode step's inputs made of it.

A slot is a sequence's place while it runs. Padding rows of a captured step name the padding slot,
the last one, which no sequence has. Data only; what fills it is declared in the runner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ANY_TOKENS = 2**62  # of a slot whose states are those of whatever its row has behind it


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """One entry per slot, on the device.

    last_token [slots] int64; num_computed [slots] int64: position of last_token; block_tables
    [slots, groups · blocks] int32, of every group of layers after the other; temperature [slots]
    float32, 0 for greedy; seed [slots] int64; top_k [slots] int64, V for off; top_p [slots]
    float32, 1 for off; min_p [slots] float32, 0 for off. num_groups: of layers. tokens [slots,
    tokens of a sequence] int32: each slot's up to last_token; None where nothing drafts from them.
    state_tokens [slots] int64: how many the states that layers keep have taken in, or ANY_TOKENS;
    None where nothing drafts. lora_slot [slots] int32: where its row's adapter is, -1 for none;
    None where no adapter is served.
    """

    last_token: torch.Tensor
    num_computed: torch.Tensor
    block_tables: torch.Tensor
    temperature: torch.Tensor
    seed: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    num_groups: int = 1
    tokens: torch.Tensor | None = None
    state_tokens: torch.Tensor | None = None
    lora_slot: torch.Tensor | None = None

    @property
    def padding_slot(self) -> int:
        return self.last_token.shape[0] - 1

    @property
    def max_blocks(self) -> int:
        """Blocks of a sequence in one group."""
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
