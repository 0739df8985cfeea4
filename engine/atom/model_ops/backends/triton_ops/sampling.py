# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sampling in one pass over the logits: each program scores a stretch of a row's vocabulary and
keeps its best token; a second kernel takes the best of the stretches.

Greedy rows score a token by its logit, others by logit / temperature - log(noise), an exponential
race with the reference's noise: the same hash of (seed, position, token), the same float32 steps.
Lowest token id wins ties, as the first maximum does.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.likely_tokens import keep_likely
from atom.model_ops.backends.triton_ops.launch import next_power_of_2

_STRETCH = 4096


@triton.jit
def _mix32(x):
    """The reference's 32-bit finaliser, in wrapping arithmetic."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _log_noise(seed, position, token):
    """log of Exp(1) noise: the reference's exponential_noise, logarithm taken."""
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key = _mix32(_mix32(low ^ _mix32(high)) ^ (position & 0xFFFFFFFF).to(tl.uint32))
    bits = _mix32(token.to(tl.uint32) * 0x9E3779B1 ^ key)
    v = bits.to(tl.float32) * (2.0**-32) + (2.0**-33)
    series = v * (1 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v * (1 / 6))))))
    exact = -tl.log(tl.maximum(1.0 - v, 2.0**-25))
    return tl.log(tl.where(v < 0.0625, series, exact))


@triton.jit(do_not_specialize=["row_stride"])
def _score_kernel(
    logits_ptr, temperature_ptr, seed_ptr, position_ptr, best_ptr, token_ptr, row_stride, vocab,
    STRETCH: tl.constexpr, STRETCHES: tl.constexpr,
):  # fmt: skip
    row, stretch = tl.program_id(0), tl.program_id(1)
    token = stretch * STRETCH + tl.arange(0, STRETCH)
    at = logits_ptr + row.to(tl.int64) * row_stride + token
    score = tl.load(at, mask=token < vocab, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    if temperature != 0:
        seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
        score = score / temperature - _log_noise(seed, position, token)
    best, index = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(best_ptr + row * STRETCHES + stretch, best)
    tl.store(token_ptr + row * STRETCHES + stretch, stretch * STRETCH + index)


@triton.jit
def _pick_kernel(best_ptr, token_ptr, out_ptr, STRETCHES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * STRETCHES + at, mask=at < STRETCHES, other=float("-inf"))
    _, index = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out_ptr + row, tl.load(token_ptr + row * STRETCHES + index).to(tl.int64))


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    if sampling.any_top_k or sampling.any_top_p:
        logits, sampling = _filtered(logits, sampling)
    rows, vocab = logits.shape
    stretches = triton.cdiv(vocab, _STRETCH)
    best = torch.empty((rows, stretches), dtype=torch.float32, device=logits.device)
    token = torch.empty((rows, stretches), dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _score_kernel[(rows, stretches)](
        logits, sampling.temperature, sampling.seed, sampling.position, best, token,
        logits.stride(0), vocab, STRETCH=_STRETCH, STRETCHES=stretches, num_warps=8,
    )  # fmt: skip
    _pick_kernel[(rows,)](
        best, token, out, STRETCHES=stretches, BLOCK=next_power_of_2(stretches), num_warps=1
    )
    return out


def _filtered(
    logits: torch.Tensor, sampling: SamplingTensors
) -> tuple[torch.Tensor, SamplingTensors]:
    """Logits scaled by temperature, unlikely tokens at -inf, and the parameters that are left."""
    is_greedy = sampling.temperature == 0
    scaled = logits.float() / torch.where(is_greedy, 1.0, sampling.temperature).unsqueeze(1)
    kept = keep_likely(scaled, sampling)
    return kept, replace(sampling, temperature=torch.where(is_greedy, 0.0, 1.0))
