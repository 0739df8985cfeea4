"""Sampling in plain PyTorch: temperature, and one draw per row by two exponential races.

The noise of a row is a hash of (seed, position): a seed gives the same draw whatever else is in the
batch. See noise.py for the races.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import GROUP, WITHIN_GROUP, exponential_noise, row_keys

_LEAST = -1e30  # for rows of only -inf, whose difference would be NaN


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    if sampling.all_greedy:
        return logits.argmax(dim=-1)
    drawn_ids, _ = _race(logits, 0, sampling)
    if not sampling.any_greedy:
        return drawn_ids
    return torch.where(sampling.temperature == 0, logits.argmax(dim=-1), drawn_ids)


def sample_vocab_shard(
    logits: torch.Tensor, first: int, sampling: SamplingTensors
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = logits.argmax(dim=-1)
    scores = logits.gather(1, tokens.unsqueeze(1)).squeeze(1).float()
    if not sampling.all_greedy:
        is_greedy = sampling.temperature == 0
        drawn, drawn_scores = _race(logits, first // GROUP, sampling)
        tokens = torch.where(is_greedy, tokens, drawn)
        scores = torch.where(is_greedy, scores, drawn_scores)
    return tokens + first, scores


def _race(
    logits: torch.Tensor, first_group: int, sampling: SamplingTensors
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the winner by its place in logits, whose groups count from first_group, and the
    logarithm of its group's clock."""
    rows, vocab = logits.shape
    temperature = torch.where(sampling.temperature == 0, 1.0, sampling.temperature)
    groups = -(-vocab // GROUP)
    # One tensor of this size, worked on in place: on the CPU new memory costs more than the sums.
    padded = torch.empty((rows, groups * GROUP), dtype=torch.float32, device=logits.device)
    highest = logits.amax(dim=-1, keepdim=True).float().clamp_min(_LEAST)
    torch.sub(logits, highest, out=padded[:, :vocab])
    padded[:, vocab:] = -torch.inf
    rate = 1.0 / temperature
    weights = padded.mul_(rate.unsqueeze(1)).exp_().view(rows, groups, GROUP)
    # The group, and then the token, whose exponential clock rings first: its rate is its weight.
    keys = row_keys(sampling.seed, sampling.position).unsqueeze(1)
    numbers = torch.arange(first_group, first_group + groups, device=logits.device)
    group_clocks = weights.sum(dim=-1) / exponential_noise(keys, numbers)
    group = group_clocks.argmax(dim=-1)
    row = torch.arange(rows, device=logits.device)
    places = group.unsqueeze(1) * GROUP + torch.arange(GROUP, device=logits.device)
    noise = exponential_noise(keys ^ WITHIN_GROUP, places + first_group * GROUP)
    clocks = weights[row, group] / noise
    score = highest.squeeze(1) * rate + group_clocks[row, group].log()
    return places[row, clocks.argmax(dim=-1)], score
