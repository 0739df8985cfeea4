"""Sample from logits of which each rank has a shard, without gathering them.

The races of noise.py are between groups of tokens and then between a group's tokens, and the noise
of both is a function of their numbers. So each rank runs the races over its own shard and sends its
winner, with a comparable score. The best of the ranks' winners is the result of a single race over
all tokens. Greedy rows send their highest logit. The host never waits for the device, and every
rank gets the same token.
"""

from __future__ import annotations

import torch

from atom.collectives.group import Group
from atom.model_ops.backends.interface import Ops, SamplingTensors
from atom.model_ops.backends.noise import GROUP


def can_draw_apart(shard: int, sampling: SamplingTensors) -> bool:
    """Return whether ranks with `shard` tokens each can race apart: no group of tokens is in
    two."""
    return shard % GROUP == 0 or sampling.all_greedy


def ranked_draw(
    logits: torch.Tensor, sampling: SamplingTensors, ops: Ops, group: Group
) -> torch.Tensor:
    """Draw token ids [R] int64 from logits [R, V / ranks], this rank's shard. See `Ops.sample`."""
    tokens, scores = ops.sample_vocab_shard(logits, group.rank * logits.shape[1], sampling)
    # Both numbers are exact in float64, and so travel together.
    own = torch.stack((scores.double(), tokens.double()), dim=1)
    everyone = group.gather(own).unflatten(1, (-1, 2))  # [R, ranks, 2]
    winner = everyone[:, :, 0].argmax(dim=1, keepdim=True)
    return everyone[:, :, 1].gather(1, winner).squeeze(1).long()
