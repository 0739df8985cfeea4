"""Order a step's tokens for layers that keep states, if rows carry drafts.

A state cannot be rolled back, so it takes in a step's newest tokens, which are certain, and no
drafts. The layers store the drafts' inputs; the next step takes in those of accepted drafts, before
its own tokens (docs/adr/0058). The number of accepted drafts follows from a slot's position and
from the number of tokens in its states, so the host need not know it. Only tensors decide, so a
graph can replay the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from atom.model_ops.slots import SlotTensors
from atom.utils.forward_context import AttentionMetaData, StateRuns


@dataclass(frozen=True, slots=True)
class StepRuns:
    """The R rows of a step, runs of decodes and prompts: starts [R + 1] int32, the index of each
    row's first token, and slots [R] int64. The first num_decodes rows are runs of a newest token
    and its drafts; padding runs are empty. longest: most tokens of a row."""

    starts: torch.Tensor
    slots: torch.Tensor
    num_decodes: int
    longest: int


def with_state_runs(
    attention: tuple[AttentionMetaData, ...], runs: StepRuns, state: SlotTensors, most_drafts: int
) -> tuple[AttentionMetaData, ...]:
    """Add to a step's metadata the order of its tokens in states, and advance the slots' states
    past their certain tokens. most_drafts: of a row in any step."""
    planned = _plan(attention[0], runs, state, most_drafts)
    return tuple(replace(group, state_runs=planned) for group in attention)


def _plan(
    step: AttentionMetaData, runs: StepRuns, state: SlotTensors, most_drafts: int
) -> StateRuns:
    assert state.state_tokens is not None, "rows carry drafts"
    starts, slots, decodes = runs.starts.long(), runs.slots, runs.num_decodes
    num_tokens, rows = len(step.slot_mapping), len(slots)
    counts = starts[1:] - starts[:-1]
    before = _computed_before(step, starts, decodes)
    held = (before - state.state_tokens[slots]).clamp(0, most_drafts)
    certain = counts.clone()
    certain[:decodes].clamp_(max=1)
    state.state_tokens[slots] = before + certain
    ends = (held + counts).cumsum(0)
    firsts = ends - held - counts
    room = num_tokens + rows * most_drafts
    if ends.device.type == "cpu":  # no more than there are
        room = int(ends[-1])
    places = torch.arange(room, device=ends.device)
    row = torch.searchsorted(ends, places, right=True).clamp(max=rows - 1)
    index = places - firsts[row]
    tokens = torch.where(
        index < held[row],
        num_tokens + row * most_drafts + index,
        (starts[row] + index - held[row]).clamp(max=num_tokens - 1),
    )
    own_places = torch.arange(num_tokens, device=ends.device)
    own_row = torch.searchsorted(starts[1:], own_places, right=True).clamp(max=rows - 1)
    own = own_places - starts[own_row] + firsts[own_row] + held[own_row]
    behind = torch.arange(1, most_drafts + 1, device=ends.device)
    return StateRuns(
        step=replace(
            step,
            query_starts=torch.cat((firsts[:1], ends)).int(),
            context_lens=(before + counts).int(),
            slots=slots,
            num_decodes=decodes,
            num_kept=(held + certain).int(),
            max_query_len=most_drafts + runs.longest,
            per_step={},
        ),
        slots=slots,
        tokens=tokens.clamp(max=num_tokens + rows * most_drafts - 1),
        own=own.clamp(max=room - 1),
        drafts=(starts[:-1, None] + behind).clamp(max=num_tokens - 1),
    )


def _computed_before(step: AttentionMetaData, starts: torch.Tensor, decodes: int) -> torch.Tensor:
    """Return how many tokens each row has computed before the step: decodes are rows of one token
    each in the step's metadata, prompts rows of theirs."""
    contexts = step.context_lens.long()
    newest = starts[:decodes].clamp(max=max(0, step.num_decodes - 1))
    prompts = contexts[step.num_decodes :] - (starts[decodes + 1 :] - starts[decodes:-1])
    return torch.cat(((contexts[newest] - 1).clamp(min=0), prompts))
