"""Sampling in plain PyTorch: temperature, and one draw per row by two exponential races.

The noise of a row is a hash of (seed, position): a seed gives the same draw whatever else is in the
batch. See noise.py for the races.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import GROUP, WITHIN_GROUP, exponential_noise, row_keys

_LEAST = -1e30  # for rows of nothing but -inf, whose difference would be no number


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    if sampling.all_greedy:
        return logits.argmax(dim=-1)
    drawn_ids = _draw(logits, sampling)
    if not sampling.any_greedy:
        return drawn_ids
    return torch.where(sampling.temperature == 0, logits.argmax(dim=-1), drawn_ids)


def _draw(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    rows, vocab = logits.shape
    temperature = torch.where(sampling.temperature == 0, 1.0, sampling.temperature)
    groups = -(-vocab // GROUP)
    # One tensor of this size, worked on in place: on the CPU new memory costs more than the sums.
    padded = torch.empty((rows, groups * GROUP), dtype=torch.float32, device=logits.device)
    highest = logits.amax(dim=-1, keepdim=True).float().clamp_min(_LEAST)
    torch.sub(logits, highest, out=padded[:, :vocab])
    padded[:, vocab:] = -torch.inf
    weights = padded.mul_((1.0 / temperature).unsqueeze(1)).exp_().view(rows, groups, GROUP)
    # The group, and then the token, whose exponential clock rings first: its rate is its weight.
    keys = row_keys(sampling.seed, sampling.position).unsqueeze(1)
    numbers = torch.arange(groups, device=logits.device)
    group = (weights.sum(dim=-1) / exponential_noise(keys, numbers)).argmax(dim=-1)
    row = torch.arange(rows, device=logits.device)
    tokens = group.unsqueeze(1) * GROUP + torch.arange(GROUP, device=logits.device)
    clocks = weights[row, group] / exponential_noise(keys ^ WITHIN_GROUP, tokens)
    return tokens[row, clocks.argmax(dim=-1)]
