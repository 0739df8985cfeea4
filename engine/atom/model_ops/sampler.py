"""Sampler: the logits of a step's rows to their next tokens.

Every row is drawn by the backend's `sample`; rows that ask for more (`ShapedRows`) have their own
copy of their logits changed first, in float32. The rest of the batch never notices. It knows
neither slots nor requests; ModelRunner calls it, and nothing in it waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.model_ops.backends.interface import LikelyLimits, Ops, SamplingTensors


@dataclass(frozen=True, slots=True)
class ShapedRows:
    """rows: [n] int64, which rows of the step ask for more than a draw; limits: of these rows."""

    rows: torch.Tensor
    limits: LikelyLimits


class Sampler:
    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __call__(
        self, logits: torch.Tensor, sampling: SamplingTensors, shaped: ShapedRows | None
    ) -> torch.Tensor:
        """logits [R, V] of any float dtype, which may be overwritten → token ids [R] int64."""
        if shaped is None:
            return self._ops.sample(logits, sampling)
        own_tokens = self._sample_shaped(logits, sampling, shaped)
        if len(shaped.rows) == len(logits):
            return own_tokens
        token_ids = self._ops.sample(logits, sampling)
        return token_ids.index_copy_(0, shaped.rows, own_tokens)

    def _sample_shaped(
        self, logits: torch.Tensor, sampling: SamplingTensors, shaped: ShapedRows
    ) -> torch.Tensor:
        own_logits = logits.index_select(0, shaped.rows).float()
        own_logits = self._ops.keep_likely(own_logits, shaped.limits)
        return self._ops.sample(
            own_logits,
            SamplingTensors(
                temperature=sampling.temperature[shaped.rows],
                seed=sampling.seed[shaped.rows],
                position=sampling.position[shaped.rows],
                all_greedy=sampling.all_greedy,
                any_greedy=sampling.any_greedy,
            ),
        )
