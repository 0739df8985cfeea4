"""Sampling in plain PyTorch: temperature, and one draw per row by an exponential race.

The noise of a row is a hash of (seed, position, token id): a seed gives the same draw whatever else
is in the batch.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import exponential_noise


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    logits = logits.float()
    if sampling.all_greedy:
        return logits.argmax(dim=-1)
    is_greedy = sampling.temperature == 0
    scaled = logits * (1.0 / torch.where(is_greedy, 1.0, sampling.temperature)).unsqueeze(1)
    noise = exponential_noise(sampling.seed, sampling.position, logits.shape[1])
    # The token whose exponential clock, of rate proportional to its probability, rings first.
    drawn_ids = (scaled - noise.log()).argmax(dim=-1)
    if not sampling.any_greedy:
        return drawn_ids
    return torch.where(is_greedy, logits.argmax(dim=-1), drawn_ids)
