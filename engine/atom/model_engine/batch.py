"""ScheduledBatch and ScheduledBatchOutput: the only values that scheduler and runner share.

The runner keeps a persistent batch: one slot per running sequence with its tokens, block table and
sampling parameters. A batch therefore says what changed (rows that entered or left, blocks that
were appended) and which slots compute how many tokens now. Arrays, not objects, so that a decode
step over many rows costs no per-row Python. Torch-free. Where the names differ from the
specification: docs/guides/upstream-names.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.row_columns import RowNumbers
from atom.model_engine.sequence_images import ImageSpan
from atom.model_engine.wire.logprob_rows import LogprobRows
from atom.model_engine.wire.pooled_rows import PooledRows
from atom.sampling_params import SamplingParams

# Slots of rows. numpy looks up with this type as it is; int32 it converts, element by element.
Slots = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class LoraLoad:
    """An adapter, by its number, that is to be in one of the device's slots from this step on."""

    number: int
    slot: int


@dataclass(frozen=True, slots=True)
class ImageEncode:
    """An image to encode before the layers run: its pixels, and rows [tokens] int32 of the buffer
    that its outputs go to. digest: names it in the result."""

    digest: bytes
    grid: tuple[int, int, int]
    rows: NDArray[np.int32]
    pixels: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Tokens of a row of the batch that an image fills: positions [n] int32, in the sequence, and
    the rows [n] int32 of the buffer with their outputs."""

    slot: int
    positions: NDArray[np.int32]
    rows: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepImages:
    """The images of a step: to encode before the layers run, and the outputs that tokens of prompts
    take in place of their embeddings."""

    encodes: tuple[ImageEncode, ...] = ()
    rows: tuple[ImageRows, ...] = ()


NO_IMAGES = StepImages()


@dataclass(frozen=True, slots=True)
class Continuations:
    """Tokens that the host foretells of R rows: slots [R]; known [R] int32, the number of each
    row's tokens that the host knows; token_ids [R, K] int32, those that probably follow them,
    NO_TOKEN after the last."""

    slots: Slots
    known: NDArray[np.int32]
    token_ids: NDArray[np.int32]


NO_TOKEN = -1
NO_CONTINUATIONS = Continuations(
    np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int32), np.zeros((0, 0), dtype=np.int32)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow(RowNumbers):
    """Describe a sequence that takes a slot: new, or back after preemption. Its numbers are
    RowNumbers'. token_ids: all its known tokens, int32, the first num_prompt_tokens its prompt;
    block_ids: of each group of layers, by index in the sequence (do not read those before a
    window). images: the places of its prompt's images, if tokens have several positions."""

    token_ids: NDArray[np.int32]
    block_ids: tuple[list[int], ...]
    params: SamplingParams
    images: tuple[ImageSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScore:
    """Describe a stretch of a row's prompt to report log-probabilities of: row of the batch; the
    logits at positions first to first + count - 1, which score the tokens one further."""

    row: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of the states that layers keep, between a row's slot and a checkpoint."""

    slot: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """Describe one engine step. Rows are in execution order: decodes first, the longest in front,
    then prefill chunks.

    new_rows: rows that enter before the step.
    block_appends: [n, 3] int32 of (slot, column, block id); a slot's block tables are stored one
    after another, so column is group * max_blocks + index, with max_blocks = ceil(max_model_len /
    block_size).
    slots, req_ids, num_computed_tokens (already in the cache), num_scheduled_tokens: per row;
    samples: whether the row's last scheduled token is its last known one, so that the step yields
    its next token.
    num_decodes: rows whose input is a token that an earlier step sampled, which only the runner may
    know yet, followed by num_scheduled_tokens - 1 drafts; each such row gets one token plus one for
    every accepted draft. If rows carry drafts and an earlier step is outstanding, a decode's
    num_computed_tokens is its upper bound. Batches share the arrays: do not change them.
    samples_later: the runner only runs the layers; a separate call samples the batch, because a
    token mask of its rows is still being computed.
    prompt_scores: the prompts' tokens to report log-probabilities of.
    state_loads, state_saves: copies from checkpoints before the layers run, and to checkpoints
    after them, if layers keep states.
    lora_loads: adapters that take a slot before the layers run.
    images: to encode, and whose outputs tokens take.
    continuations: of decodes whose drafts the host proposes.
    """

    new_rows: tuple[NewRow, ...]
    block_appends: NDArray[np.int32]
    slots: Slots
    req_ids: NDArray[np.int64]
    num_computed_tokens: NDArray[np.int32]
    num_scheduled_tokens: NDArray[np.int32]
    samples: NDArray[np.bool_]
    num_decodes: int
    samples_later: bool = False
    prompt_scores: tuple[PromptScore, ...] = ()
    state_loads: tuple[StateCopy, ...] = ()
    state_saves: tuple[StateCopy, ...] = ()
    lora_loads: tuple[LoraLoad, ...] = ()
    images: StepImages = NO_IMAGES
    continuations: Continuations = NO_CONTINUATIONS

    @property
    def total_tokens_num(self) -> int:
        return int(self.num_scheduled_tokens.sum())

    @property
    def context_lens(self) -> NDArray[np.int32]:
        """Return how many tokens each row attends over after this step."""
        return self.num_computed_tokens + self.num_scheduled_tokens


@dataclass(frozen=True, slots=True)
class ScheduledBatchOutput:
    """Hold the tokens that a batch drew. token_ids: int32, of the batch's rows with `samples` set,
    in row order; counts: int32, the number of tokens of each of these rows, at least one; None for
    one each. A row with a mask gets one. logprobs: of these, prompt_logprobs: of prompt tokens in
    order, for the rows that asked. drafts: int32, that each of these rows carried; None for as many
    as were scheduled. pooled: a pooling model's result; its tokens mean nothing. failed: request
    ids whose row could not be set up, and why; their tokens mean nothing. bad_images: digests of
    encoded images whose outputs are not finite; encode_seconds: that images took."""

    token_ids: NDArray[np.int32]
    counts: NDArray[np.int32] | None = None
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None
    drafts: NDArray[np.int32] | None = None
    pooled: PooledRows | None = None
    failed: tuple[tuple[int, str], ...] = ()
    bad_images: tuple[bytes, ...] = ()
    encode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Hold the allowed tokens of guided rows.

    rows: int32, ascending, which of the batch's rows with `samples` set; bits: int32 [rows, ceil(V
    / 32)], token t is allowed if bit t % 32 of word t // 32 is set.
    """

    rows: NDArray[np.int32]
    bits: NDArray[np.int32]
