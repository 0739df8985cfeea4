"""Sampling in plain PyTorch: temperature, top-k, top-p, one draw per row by an exponential race.

The noise of a row is a hash of (seed, position, token id), so a seed gives the same draw whatever
else is in the batch and on every backend that computes the same hash.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.likely_tokens import keep_likely

_MASK32 = 0xFFFFFFFF


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    logits = logits.float()
    greedy_ids = logits.argmax(dim=-1)
    if sampling.all_greedy:
        return greedy_ids
    is_greedy = sampling.temperature == 0
    scaled = logits / torch.where(is_greedy, 1.0, sampling.temperature).unsqueeze(1)
    if sampling.any_top_k or sampling.any_top_p:
        scaled = keep_likely(scaled, sampling)
    noise = exponential_noise(sampling.seed, sampling.position, logits.shape[1])
    # The token whose exponential clock, of rate proportional to its probability, rings first.
    drawn_ids = (scaled - noise.log()).argmax(dim=-1)
    return torch.where(is_greedy, greedy_ids, drawn_ids)


def exponential_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int) -> torch.Tensor:
    """[R, V] float32 draws of Exp(1), a pure function of (seed, position, token id).

    32-bit arithmetic carried in int64 and float32 steps that any device has, so that every backend
    computes the same hash, and the same draw but for the last bits of a logarithm.
    """
    key = _mix32((seed & _MASK32) ^ _mix32((seed >> 32) & _MASK32))
    key = _mix32(key ^ (position & _MASK32))
    tokens = torch.arange(vocab, device=seed.device)
    spread = (tokens * 0x9E3779B1) & _MASK32  # neighbouring ids far apart
    bits = _mix32(spread.unsqueeze(0) ^ key.unsqueeze(1))
    v = bits.float() * 2.0**-32 + 2.0**-33  # uniform in (0, 1], dense near 0
    # -log(1 - v). The draws that win are small: there 1 - v would lose v's digits.
    series = v * (1 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v * (1 / 6))))))
    return torch.where(v < 0.0625, series, -(1.0 - v).clamp_min(2.0**-25).log())


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser with good avalanche (constants: lowbias32, Ellis Wellons 2018)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)
