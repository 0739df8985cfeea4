"""A draw among logits of which each rank has a stretch, without bringing them together.

The races of noise.py are between groups of tokens and then between a group's tokens, and the noise
of both is a function of their numbers: each rank runs them over its own stretch and tells its
winner, with a score that can be compared. The best of the ranks' winners is what a single race
would have given. Greedy rows tell their highest logit. Scores are logarithms, so that no rank needs
another's highest logit first. Plain PyTorch, nothing waits for the device, and every rank comes to
the same token.
"""

from __future__ import annotations

import torch

from atom.collectives.group import Group
from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.noise import GROUP, WITHIN_GROUP, exponential_noise, row_keys


def can_draw_apart(stretch: int, sampling: SamplingTensors) -> bool:
    """Whether ranks with `stretch` tokens each can race apart: no group of tokens is in two."""
    return stretch % GROUP == 0 or sampling.all_greedy


def ranked_draw(logits: torch.Tensor, sampling: SamplingTensors, group: Group) -> torch.Tensor:
    """logits [R, V / ranks], this rank's stretch → token ids [R] int64. See `Ops.sample`."""
    first = group.rank * logits.shape[1]
    score, token = _highest(logits)
    if not sampling.all_greedy:
        drawn_score, drawn = _race(logits, first // GROUP, sampling)
        is_greedy = sampling.temperature == 0
        score = torch.where(is_greedy, score, drawn_score)
        token = torch.where(is_greedy, token, drawn)
    # Both numbers are exact in float64, and so travel together.
    own = torch.stack((score.double(), (token + first).double()), dim=1)
    everyone = group.gather(own).unflatten(1, (-1, 2))  # [R, ranks, 2]
    winner = everyone[:, :, 0].argmax(dim=1, keepdim=True)
    return everyone[:, :, 1].gather(1, winner).squeeze(1).long()


def _highest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R] of the stretch, and where it is first."""
    token = logits.argmax(dim=-1)
    return logits.gather(1, token.unsqueeze(1)).squeeze(1).float(), token


def _race(
    logits: torch.Tensor, first_group: int, sampling: SamplingTensors
) -> tuple[torch.Tensor, torch.Tensor]:
    """[R] the logarithm of the best group's clock, and its winning token in the stretch."""
    rows = torch.arange(len(logits), device=logits.device)
    rate = 1.0 / torch.where(sampling.temperature == 0, 1.0, sampling.temperature)
    highest = logits.amax(dim=-1).float()
    scaled = (logits.float() - highest.unsqueeze(1)).mul_(rate.unsqueeze(1))
    weights = scaled.exp_().unflatten(1, (-1, GROUP))  # [R, groups, GROUP]
    keys = row_keys(sampling.seed, sampling.position).unsqueeze(1)
    numbers = torch.arange(weights.shape[1], device=logits.device)
    clocks = weights.sum(dim=-1) / exponential_noise(keys, numbers + first_group)
    best = clocks.argmax(dim=-1)
    score = highest * rate + clocks[rows, best].log()
    tokens = best.unsqueeze(1) * GROUP + torch.arange(GROUP, device=logits.device)
    noise = exponential_noise(keys ^ WITHIN_GROUP, tokens + first_group * GROUP)
    within = (weights[rows, best] / noise).argmax(dim=-1)
    return score, tokens[rows, within]
