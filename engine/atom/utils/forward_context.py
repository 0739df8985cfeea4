"""ForwardContext: the data that a forward pass needs besides its inputs, without parameters.

Layers read the step's attention metadata from `get_forward_context()`, so a model's signature stays
`(input_ids, positions)` and a captured graph replays with the same objects. Data only: the module
knows no layer and no scheduler. Set by the runner around one forward pass; nesting is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class EqualPrompts:
    """Neighbouring rows of a step that compute whole prompts of one length, with no history.

    first_row, rows: which; first_token: where in the step they begin; length: tokens of each;
    leading: of these, those that a dense attention is to compute, fewer only of a single prompt.
    """

    first_row: int
    rows: int
    first_token: int
    length: int
    leading: int


@dataclass(frozen=True, slots=True)
class LongChunk:
    """A row of a step that computes many tokens behind a history, and how a dense attention is to
    take it.

    row: which; first_token: where in the step it begins; length: its tokens, of which the first
    `head`, and those behind the tiles, are left to others; history: lengths of the pieces that the
    tokens before the tiles are in, which are all of the row's, the head included; tiles: lengths of
    the parts that its other tokens are in.
    """

    row: int
    first_token: int
    length: int
    head: int
    history: tuple[int, ...]
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DecodeRuns:
    """Say which neighbouring decodes of a step are of one sequence: a newest token and its drafts.

    starts: [runs + 1] int32 on the model's device; run i is the decodes starts[i]:starts[i + 1], in
    any order, and may be empty. Decodes behind the last run are padding. longest: decodes of a run,
    at most.
    """

    starts: torch.Tensor
    longest: int


@dataclass(frozen=True, slots=True)
class AttentionMetaData:
    """Say where this step's tokens belong. Tensors on the model's device.

    query_starts: [rows + 1] int32, row i owns tokens query_starts[i]:query_starts[i + 1];
    context_lens: [rows] int32, tokens row i attends over, its own included; block_tables: [rows,
    max_blocks] int32; slot_mapping: [tokens] int64, block * size + offset of each token's K and V.
    The first `num_decodes` rows have exactly one token. max_query_len, max_context_len: host copies
    of the maxima. even_contexts: no decode row is so long that it would outlast all others.
    long_prompts: groups of prompts that a dense attention may compute without looking into the
    cache, in order of rows. long_chunks: rows with a history that one may compute in pieces, in
    order and in none of those groups. prompt_context: tokens that all rows but decodes attend over,
    None where the host does not know. has_padding: tokens behind the decodes may belong to no row;
    what is computed for them is 0. runs: which decodes are of one sequence, where several may be;
    the keys and values of all have to be written before any of them attends then. slots: [rows]
    int64, of each row, where layers keep its states; None where none does. per_step: what an
    operation worked out from the rest for the layers after it, by a key of its own; never read by
    others. num_kept: [rows] int32, how many of a row's tokens its states take in, None for all;
    rows that decode may have several tokens then. state_runs: how the step's tokens go through
    layers that keep states, where rows carry drafts.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    max_query_len: int
    max_context_len: int
    even_contexts: bool = False
    long_prompts: tuple[EqualPrompts, ...] = ()
    long_chunks: tuple[LongChunk, ...] = ()
    prompt_context: int | None = None
    has_padding: bool = False
    runs: DecodeRuns | None = None
    slots: torch.Tensor | None = None
    num_kept: torch.Tensor | None = None
    state_runs: StateRuns | None = None
    per_step: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class StateRuns:
    """Say how a step's T tokens go through states, which stand behind a row's last certain token:
    row by row first the drafts of its last step that held, of which layers have kept the inputs,
    then its tokens of this step.

    step: of these R rows, with num_kept; slots int64 [R]: of each. tokens [n] int64: of those that
    the rows go through, which of the step's it is, or T + row · K + i of the i-th kept draft. own
    [T] int64: where each of the step's stands among them. drafts [R, K] int64: the step's tokens
    that are drafts, whose inputs layers keep now, and behind them any.
    """

    step: AttentionMetaData
    slots: torch.Tensor
    tokens: torch.Tensor
    own: torch.Tensor
    drafts: torch.Tensor


@dataclass(frozen=True, slots=True)
class LoraTokens:
    """Say with which adapter each token is computed: slots [T] int32, its adapter's slot, -1 for
    the model alone. per_step: as in AttentionMetaData."""

    slots: torch.Tensor
    per_step: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The context of the step that is running. attention: of the step that is running, one for each
    group of layers; logits_indices [n] int64: the tokens whose hidden states are wanted, at least
    one, so that the model returns these alone; None for all. lora: of the tokens that layers
    compute now; None where no token has an adapter."""

    attention: tuple[AttentionMetaData, ...]
    logits_indices: torch.Tensor | None = None
    lora: LoraTokens | None = None


_current: ForwardContext | None = None


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """Make `context` the current one for one forward pass."""
    global _current  # the one guarded module-level state (style guide)
    if _current is not None:
        raise RuntimeError("a forward pass is already running; forward contexts do not nest")
    _current = context
    try:
        yield
    finally:
        _current = None


def narrow_lora(tokens: torch.Tensor) -> None:
    """Restrict the LoRA slots to these tokens [n] int64, for the rest of this forward pass."""
    global _current
    if _current is not None and _current.lora is not None:
        _current = replace(_current, lora=LoraTokens(_current.lora.slots[tokens]))


def get_forward_context() -> ForwardContext:
    if _current is None:
        raise RuntimeError("no forward pass is running; call inside set_forward_context()")
    return _current
