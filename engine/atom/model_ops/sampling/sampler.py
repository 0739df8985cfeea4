"""Sampler: turn the logits of a step's rows into their next tokens.

The backend's `sample` draws every row. Rows with further controls (`ShapedRows`) first have a copy
of their logits changed, in float32, in vLLM's order: biases and forbidden tokens, then penalties,
then temperature, top-k, top-p and min-p (`filter_logits`). The other rows of the batch are not
affected. The module knows neither slots nor requests; StepRunner calls it, and it never makes the
host wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from atom.model_ops.backends.interface import LogitFilters, Ops, SamplingTensors
from atom.model_ops.sampling.forbidden_tokens import (
    BadWords,
    ForbiddenTokens,
    forbid,
    forbid_bad_words,
)
from atom.model_ops.sampling.penalties import Penalties, penalize


@dataclass(frozen=True, slots=True)
class ShapedRows:
    """Rows of a step with further controls than sampling; a part is None if no row needs it.

    rows: [n] int64, their indices in the step; bias: [n, V] float32, added to the logits;
    forbidden: by index in `rows`.
    """

    rows: torch.Tensor
    bias: torch.Tensor | None = None
    forbidden: ForbiddenTokens | None = None
    bad_words: BadWords | None = None
    penalties: Penalties | None = None
    filters: LogitFilters | None = None


class Sampler:
    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __call__(
        self, logits: torch.Tensor, sampling: SamplingTensors, shaped: Sequence[ShapedRows]
    ) -> torch.Tensor:
        """Draw token ids [R] int64 from logits [R, V] of any float dtype, which may be overwritten;
        no row is in two of `shaped`."""
        own_tokens = [self._sample_shaped(logits, sampling, group) for group in shaped]
        if len(own_tokens) == 1 and len(own_tokens[0]) == len(logits):
            return own_tokens[0]
        token_ids = self._ops.sample(logits, sampling)
        for group, tokens in zip(shaped, own_tokens, strict=True):
            token_ids.index_copy_(0, group.rows, tokens)
        return token_ids

    def _sample_shaped(
        self, logits: torch.Tensor, sampling: SamplingTensors, shaped: ShapedRows
    ) -> torch.Tensor:
        own = logits.index_select(0, shaped.rows).float()
        if shaped.bias is not None:
            own += shaped.bias
        if shaped.forbidden is not None:
            forbidden = shaped.forbidden
            forbid(own, forbidden.rows, forbidden.token_ids, forbidden.holds)
        if shaped.bad_words is not None:
            forbid_bad_words(own, shaped.bad_words)
        if shaped.penalties is not None:
            penalize(own, shaped.penalties)
        if shaped.filters is not None:
            own = self._ops.filter_logits(own, shaped.filters)
        return self._ops.sample(
            own,
            replace(
                sampling,
                temperature=sampling.temperature[shaped.rows],
                seed=sampling.seed[shaped.rows],
                position=sampling.position[shaped.rows],
            ),
        )
