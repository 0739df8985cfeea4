"""Drafts: tokens that a step's rows may get next, before the model has said so."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.slots import SlotTensors


@dataclass(frozen=True, slots=True)
class Lookup:
    """How drafts are found among a row's own tokens: its last ones, as many as possible from
    `fewest` to `most`, have to occur before, and the newest of the longest matches counts.
    num_drafts: of a row."""

    fewest: int
    most: int
    num_drafts: int


@dataclass(frozen=True, slots=True)
class Drafts:
    """Of the rows of a step: token_ids [R, K] int64, counts [R] int64 how many of them are drafts;
    those behind are tokens of the vocabulary that mean nothing."""

    token_ids: torch.Tensor
    counts: torch.Tensor


def keep_newest(slots: torch.Tensor, state: SlotTensors) -> None:
    """Keep each slot's newest token [R] behind its others, where a step gave one to each."""
    assert state.tokens is not None, "slots keep their tokens where drafts are looked up"
    if slots.device.type == "cpu":  # numpy does the same in a third of the time
        rows = slots.numpy()
        state.tokens.numpy()[rows, state.num_computed.numpy()[rows]] = state.last_token.numpy()[
            rows
        ]
        return
    newest = state.last_token[slots].to(state.tokens.dtype)
    state.tokens[slots, state.num_computed[slots]] = newest
