"""PromptBucket: how large captured steps with prompts are, and which of them a step runs in.

A step that is launched op by op takes the host as long however few tokens it has; a graph of it
takes as long as its bucket's tokens do. So there are buckets up to as many tokens as keep the
device busy for as long as the host. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from atom.model_engine.batch import ScheduledBatch
from atom.sizing.model_facts import ModelFacts
from atom.sizing.weights.layer_matrices import token_elements

_TOKENS = (64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
_DECODES = (0, 16, 64, 256)
_MOST_ROWS = 64  # of prompts
# Elements of a layer times tokens whose products take as long as launching the layer: 0.5 ms at
# 500 TFLOP/s, as measured on an H200 (docs/results/gpu/dense.md).
_HOST_BOUND = 1.2e11


@dataclass(frozen=True, slots=True)
class PromptBucket:
    """The sizes of a captured step with prompts. tokens: of the step, the first `decodes` of which
    are rows of one token each; rows: of prompts, after them."""

    tokens: int
    decodes: int
    rows: int

    def holds(self, batch: ScheduledBatch) -> bool:
        """Return whether the batch fits, the rest of the bucket being padding."""
        decodes = batch.num_decodes
        prompts = batch.total_tokens_num - decodes
        rows = len(batch.slots) - decodes
        has_room = self.has_room(decodes, prompts, rows)
        return has_room and bool(np.all(batch.num_scheduled_tokens[:decodes] == 1))

    def has_room(self, decodes: int, prompt_tokens: int, rows: int) -> bool:
        """Return whether a step fits. decodes: rows of one token; prompt_tokens, rows: of its
        prompts."""
        return (
            decodes <= self.decodes
            and prompt_tokens <= self.tokens - self.decodes
            and rows <= self.rows
        )


def prompt_buckets(
    most_rows: int, most_tokens: int, host_bound_tokens: int
) -> tuple[PromptBucket, ...]:
    """List the buckets in the order in which a batch is to try them. most_rows, most_tokens: of a
    step; host_bound_tokens: of one that keeps the host as long as the device."""
    decodes = sorted({min(count, most_rows, most_tokens) for count in _DECODES})
    return tuple(
        PromptBucket(tokens, count, min(most_rows, _MOST_ROWS, tokens - count))
        for tokens in _sizes(most_tokens, host_bound_tokens)
        for count in decodes
        if count <= tokens // 2
    )


def host_bound_tokens(facts: ModelFacts, ranks: int) -> int:
    """Return the tokens of a step that keep each of `ranks` ranks as busy as their hosts."""
    elements = token_elements(facts) / (len(facts.layers) * ranks)
    return int(_HOST_BOUND / elements)


def _sizes(most_tokens: int, host_bound: int) -> Iterator[int]:
    """Yield the sizes up to the first that holds any step."""
    for size in _TOKENS:
        if size <= host_bound:
            yield size
        if size // 2 >= most_tokens:
            return
