"""StepShape: the rows of one step as the numbers that its time depends on. Values only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import ScheduledBatch


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one prompt in a step: `tokens` of them, after `computed` earlier ones."""

    computed: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class StepShape:
    """The rows of a step. contexts: int64 [decodes], tokens that the newest token of each decode
    attends to, itself included; decode_tokens: of all decodes, drafts included; sampled: rows that
    get logits; padding: tokens of a captured step beside these, which layers multiply too; drafts:
    the most of a row; adapters: that rows have, adapted_tokens: of such rows, and loaded: adapters
    that take a slot before the step; grids: patches of the images that are encoded before the
    layers run; has_images: whether a prompt with images is not yet past these."""

    contexts: NDArray[np.int64]
    decode_tokens: int
    chunks: tuple[Chunk, ...] = ()
    sampled: int = 0
    padding: int = 0
    drafts: int = 0
    adapters: int = 0
    adapted_tokens: int = 0
    loaded: int = 0
    grids: tuple[tuple[int, int, int], ...] = ()
    has_images: bool = False

    @classmethod
    def of(cls, batch: ScheduledBatch) -> StepShape:
        """Read the shape of a scheduled batch, but for its adapters, which the batch does not
        have."""
        decodes, counts = batch.num_decodes, batch.num_scheduled_tokens
        computed = batch.num_computed_tokens
        contexts = computed[:decodes].astype(np.int64) + counts[:decodes]
        chunks = zip(computed[decodes:].tolist(), counts[decodes:].tolist(), strict=True)
        of_decodes = int(counts[:decodes].sum())
        prompts_ending = int(np.count_nonzero(batch.samples[decodes:]))
        return cls(
            contexts,
            of_decodes,
            tuple([Chunk(before, count) for before, count in chunks]),
            of_decodes + prompts_ending,
            drafts=int(counts[:decodes].max(initial=1)) - 1,
            grids=tuple(image.grid for image in batch.images.encodes),
            has_images=bool(batch.images.rows),
        )

    @classmethod
    def decodes(cls, rows: int, context: int, drafts: int = 0) -> StepShape:
        """Describe a step of equal decodes, each with so many drafts."""
        tokens = rows * (1 + drafts)
        return cls(np.full(rows, context, dtype=np.int64), tokens, (), tokens, drafts=drafts)

    @classmethod
    def prompt(cls, tokens: int, computed: int = 0) -> StepShape:
        """Describe a step of one prompt's last tokens."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, 0, (Chunk(computed, tokens),), 1)

    @property
    def prompt_tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        """Count the tokens that pass the layers."""
        return self.decode_tokens + self.prompt_tokens
