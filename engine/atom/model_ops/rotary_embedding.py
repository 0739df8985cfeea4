"""Rotary position embedding: the table of cosines and sines, with Llama 3's context scaling.

Sources: RoFormer (Su et al. 2021); Llama 3.1's frequency scaling as in its configuration fields
(factor, low_freq_factor, high_freq_factor, original_max_position_embeddings).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom.errors import ModelError


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    head_dim: int
    theta: float
    scaling: Llama3Scaling | None


def rope_config(hf_config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read either spelling of config.json: rope_parameters (transformers 5) or rope_theta and
    rope_scaling. Raises `ModelError` on a scaling that this version does not compute."""
    parameters = dict(hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or hf_config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return RopeConfig(head_dim=head_dim, theta=theta, scaling=None)
    if kind != "llama3":
        raise ModelError(
            f"config.json: rope type {kind!r} is not supported; this version computes "
            f"'default' and 'llama3'"
        )
    try:
        scaling = Llama3Scaling(
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"config.json: llama3 rope scaling lacks {error}") from error
    return RopeConfig(head_dim=head_dim, theta=theta, scaling=scaling)


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """[D/2] float32, radians per position of each pair."""
    pairs = torch.arange(0, rope.head_dim, 2, dtype=torch.int64).float() / rope.head_dim
    frequencies = 1.0 / rope.theta**pairs
    if rope.scaling is None:
        return frequencies
    scaling = rope.scaling
    context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    # 0 where a wave spans the original context less than low_freq_factor times, 1 where at least
    # high_freq_factor times.
    keep = (context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    keep = keep.clamp(0, 1)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def cos_sin_table(rope: RopeConfig, max_position: int) -> torch.Tensor:
    """[max_position, D] float32: D/2 cosines, then D/2 sines."""
    angles = torch.outer(torch.arange(max_position).float(), inverse_frequencies(rope))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
