"""Sampling in plain PyTorch: temperature, top-k, top-p, one draw per row by an exponential race.

The noise of a row is a hash of (seed, position, token id), so a seed gives the same draw whatever
else is in the batch and on every backend that computes the same hash.
"""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors

_MASK32 = 0xFFFFFFFF


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    greedy_ids = logits.argmax(dim=-1)
    if sampling.all_greedy:
        return greedy_ids
    is_greedy = sampling.temperature == 0
    scaled = logits / torch.where(is_greedy, 1.0, sampling.temperature).unsqueeze(1)
    if sampling.any_top_k or sampling.any_top_p:
        scaled = _filter(scaled, sampling)
    probabilities = scaled.softmax(dim=-1)
    noise = exponential_noise(sampling.seed, sampling.position, logits.shape[1])
    drawn_ids = (probabilities / noise).argmax(dim=-1)
    return torch.where(is_greedy, greedy_ids, drawn_ids)


def _filter(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Tokens outside top-k, and then outside the smallest set of probability top-p, become -inf."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    ordered = ordered.masked_fill(rank >= sampling.top_k.unsqueeze(1), -torch.inf)
    probabilities = ordered.softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    # The most likely token always stays: no mass is before it.
    ordered = ordered.masked_fill(
        (mass_before >= sampling.top_p.unsqueeze(1)) & (rank > 0), -torch.inf
    )
    return torch.empty_like(logits).scatter_(1, order, ordered)


def exponential_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int) -> torch.Tensor:
    """[R, V] float32 draws of Exp(1), a pure function of (seed, position, token id).

    32-bit arithmetic carried in int64, so that every device computes the same bits.
    """
    key = _mix32((seed & _MASK32) ^ _mix32((seed >> 32) & _MASK32))
    key = _mix32(key ^ (position & _MASK32))
    tokens = torch.arange(vocab, device=seed.device)
    bits = _mix32(_mix32(tokens).unsqueeze(0) ^ key.unsqueeze(1))
    uniform = (bits.double() + 0.5) / 2**32  # never 0 or 1
    return -uniform.log().float()


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser with good avalanche (constants: lowbias32, Ellis Wellons 2018)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK32
    return x ^ (x >> 16)
