"""Draws on the CPU's kernels: two passes over a row's logits instead of ten."""

from __future__ import annotations

import torch

from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.backends.native_cpu.library import floats, integers, library


def sample(logits: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    rows, vocab = logits.shape
    if not (len(sampling.temperature) == len(sampling.seed) == len(sampling.position) == rows):
        raise ValueError(f"parameters of {len(sampling.seed)} draws for {rows} rows")
    tokens = torch.empty(rows, dtype=torch.int64)
    library().atom_sample(
        floats(logits), floats(sampling.temperature), integers(sampling.seed, torch.int64),
        integers(sampling.position, torch.int64), tokens.data_ptr(), rows, vocab,
        torch.get_num_threads(),
    )  # fmt: skip
    return tokens
