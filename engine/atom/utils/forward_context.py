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

    first_row, rows: the rows; first_token: the index of their first token in the step; length:
    tokens of each; leading: the tokens of each that a dense attention computes, fewer than `length`
    only for a single prompt.
    """

    first_row: int
    rows: int
    first_token: int
    length: int
    leading: int


@dataclass(frozen=True, slots=True)
class LongChunk:
    """A row of a step that computes many tokens after a history, and its division for dense
    attention.

    row: its index; first_token: the index of its first token in the step; length: its tokens, of
    which other kernels compute the first `head` and those after the tiles; history: lengths of the
    pieces of context before the tiles, which include the head; tiles: lengths of the parts of its
    other tokens.
    """

    row: int
    first_token: int
    length: int
    head: int
    history: tuple[int, ...]
    tiles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The division of a step's prompts for dense attention, as far as the host knows their lengths.

    equal: groups of prompts that it may compute without reading the cache, in order of rows.
    chunks: rows with a history that it may compute in pieces, in order and in none of those groups.
    context: tokens that all rows but decodes attend over, None if the host does not know.
    last_seen: [tokens] int32 on the model's device, the position of the last token that each
    attends to in layers whose image tokens see later ones, or of an encoder; None if no token sees
    a later one. Decodes see none. positions: [tokens] int64 of each, known with last_seen.
    """

    equal: tuple[EqualPrompts, ...] = ()
    chunks: tuple[LongChunk, ...] = ()
    context: int | None = None
    last_seen: torch.Tensor | None = field(default=None, compare=False)
    positions: torch.Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DecodeRuns:
    """The neighbouring decodes of a step that belong to one sequence: a newest token and its
    drafts.

    starts: [runs + 1] int32 on the model's device; run i is the decodes starts[i]:starts[i + 1], in
    any order, and may be empty. Decodes after the last run are padding. longest: most decodes of a
    run.
    """

    starts: torch.Tensor
    longest: int


@dataclass(frozen=True, slots=True)
class AttentionMetaData:
    """The attention metadata of a step. Tensors are on the model's device.

    - query_starts: [rows + 1] int32, row i owns tokens query_starts[i]:query_starts[i + 1].
    - context_lens: [rows] int32, tokens row i attends over, its own included; block_tables: [rows,
      max_blocks] int32; slot_mapping: [tokens] int64, block * size + offset of each token's K and
      V.
    - num_decodes: the first `num_decodes` rows have exactly one token. max_query_len,
      max_context_len: host copies of the maxima. even_contexts: no decode row is so long that it
      would outlast all others.
    - prompts: the host's knowledge of the rows that are no decodes.
    - has_padding: tokens after the decodes may belong to no row; their results are 0.
    - runs: the decodes of one sequence, if it may have several; then all their keys and values must
      be written before any of them attends.
    - slots: [rows] int64, the slot of each row's states; None if no layer keeps states.
    - per_step: results that an operation computes from the rest for later layers, by a key of its
      own; other operations never read them.
    - num_kept: [rows] int32, how many of a row's tokens its states take in, None for all; rows that
      decode may have several tokens then. state_runs: the order of the step's tokens in layers that
      keep states, if rows carry drafts.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    max_query_len: int
    max_context_len: int
    even_contexts: bool = False
    prompts: PromptPlan = PromptPlan()
    has_padding: bool = False
    runs: DecodeRuns | None = None
    slots: torch.Tensor | None = None
    num_kept: torch.Tensor | None = None
    state_runs: StateRuns | None = None
    per_step: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class StateRuns:
    """The order in which a step's T tokens go through states, which cover a sequence up to a row's
    last certain token. Each row first has the accepted drafts of its last step, whose inputs layers
    have kept, then its tokens of this step.

    step: of these R rows, with num_kept; slots int64 [R]: of each. tokens [n] int64: for each
    computed token its index in the step, or T + row · K + i for the i-th kept draft. own [T] int64:
    the position of each of the step's tokens among them. drafts [R, K] int64: the step's tokens
    that are drafts, whose inputs layers keep now, padded with any tokens.
    """

    step: AttentionMetaData
    slots: torch.Tensor
    tokens: torch.Tensor
    own: torch.Tensor
    drafts: torch.Tensor


@dataclass(frozen=True, slots=True)
class LoraTokens:
    """The adapter of each token: slots [T] int32, its adapter's slot, -1 for the base model.
    per_step: as in AttentionMetaData."""

    slots: torch.Tensor
    per_step: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The tokens of a step that images' outputs fill: tokens [n] int64, their indices in the step;
    outputs [n, row size], the encoder's rows for them."""

    tokens: torch.Tensor
    outputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class RopeShifts:
    """The difference of tokens' rotary positions from their positions in the sequence, if images
    come before them: shifts [T] int64, or [3, T] of time, height and width if a row's prompt has
    images. per_step: as in AttentionMetaData."""

    shifts: torch.Tensor
    per_step: dict[Any, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The context of the running step. attention: its metadata, one for each group of layers;
    logits_indices [n] int64: the tokens whose hidden states the model returns, at least one; None
    for all. lora: of the tokens that layers compute now; None if no token has an adapter. images:
    None if no token is an image's; shifts: None if every token rotates by its position."""

    attention: tuple[AttentionMetaData, ...]
    logits_indices: torch.Tensor | None = None
    lora: LoraTokens | None = None
    images: ImageTokens | None = None
    shifts: RopeShifts | None = None


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
