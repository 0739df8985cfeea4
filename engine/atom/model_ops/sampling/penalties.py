"""Repetition, presence and frequency penalties, in plain PyTorch.

Logits are changed in place. The host makes no decision, so it never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Set in an entry of `Penalties.occurrences` whose token is part of the prompt; the bits below count
# the answer's.
IN_PROMPT = 1 << 30


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of rows: occurrences [n, V] int32, how often the answer has each token, plus
    IN_PROMPT if the prompt has it; repetition, presence, frequency [n] float32 as in
    SamplingParams."""

    occurrences: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


def penalize(logits: torch.Tensor, penalties: Penalties) -> None:
    """Change logits [n, V] float32: repetition over prompt and answer; frequency and presence over
    the answer."""
    occurrences = penalties.occurrences
    repetition = penalties.repetition.unsqueeze(1)
    factor = torch.where(occurrences > 0, repetition, 1.0)
    logits.copy_(torch.where(logits > 0, logits / factor, logits * factor))
    count = occurrences & (IN_PROMPT - 1)
    logits -= count * penalties.frequency.unsqueeze(1)
    logits -= (count > 0) * penalties.presence.unsqueeze(1)
