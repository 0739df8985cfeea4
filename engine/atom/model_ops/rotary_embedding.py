"""Rotary position embedding: tables of cosines and sines, for every kind that config.json may name.

Kernels know one form only: all of a head's elements rotate, in pairs (i, i + D / 2). A head of
which only a part rotates, or whose pairs are neighbours (interleaved), is converted to that form
once: `head_order` gives the order in which its elements are loaded, and elements that do not rotate
have cosine 1 and sine 0. Queries and keys have the same order, so their products do not change.

Sources: RoFormer (Su et al. 2021); YaRN (Peng et al. 2023); LongRoPE (Ding et al. 2024); linear and
dynamic scaling, Llama 3.1's and the proportional kind as transformers' modeling_rope_utils defines
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from atom.errors import ModelError
from atom.model_ops.values import NormWeight, Rotary
from atom.utils.device import upload
from atom.utils.forward_context import get_forward_context


class Scaling(Protocol):
    """A kind of rope scaling, applied to the plain frequencies."""

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        """Scale frequencies [pairs], radians per position, as this kind does."""

    @property
    def attention_factor(self) -> float:
        """Return the factor of cosines and sines."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """A temperature of queries that grows with their position p, by 1 + scale · ln(1 + ⌊(p + 1) /
    floor⌋), so that queries with a long context still attend sharply (Nakanishi, arXiv 2501.19399;
    Llama 4)."""

    floor: float
    scale: float

    def table(self, max_position: int) -> torch.Tensor:
        """Compute the table [max_position] float32."""
        steps = torch.floor((torch.arange(max_position).float() + 1.0) / self.floor)
        return torch.log1p(steps) * self.scale + 1.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A rope: the leading `rotary_dim` of a head's `head_dim` elements rotate, by frequencies over
    `base_dim` elements, or over `rotary_dim` if it is 0; interleaved: pairs are neighbours;
    temperature: of queries, if they have one; sections: pairs that rotate by an image token's time,
    height and width, in turn while they last, and then by its time (Qwen3-VL)."""

    head_dim: int
    rotary_dim: int
    theta: float
    scaling: Scaling | None = None
    interleaved: bool = False
    base_dim: int = 0
    temperature: Temperature | None = None
    sections: tuple[int, int, int] | None = None

    @property
    def attention_factor(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.attention_factor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float
    attention_factor: float = 1.0

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """The base grows with the length (NTK), here with the longest that the engine serves: keys stay
    in the cache, so frequencies cannot follow each sequence."""

    factor: float
    original: int
    longest: int
    attention_factor: float = 1.0

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        length, dim = max(self.longest, self.original), _grown_dim(rope)
        growth = self.factor * length / self.original - (self.factor - 1)
        theta = rope.theta * growth ** (dim / (dim - 2))
        return _frequencies(theta, dim, rope.rotary_dim)


@dataclass(frozen=True, slots=True)
class AlphaScaling:
    """Scaling of the base by `alpha` (NTK), for any length (Hunyuan)."""

    alpha: float
    attention_factor: float = 1.0

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        dim = _grown_dim(rope)
        theta = rope.theta * self.alpha ** (dim / (dim - 2))
        return _frequencies(theta, dim, rope.rotary_dim)


def _grown_dim(rope: RopeConfig) -> int:
    """Count the elements that the frequencies of a grown base are over."""
    dim = rope.base_dim or rope.rotary_dim
    if dim <= 2:
        raise ModelError(
            f"config.json: dynamic rope of {dim} rotating elements has no base; use another "
            "partial_rotary_factor or head_dim"
        )
    return dim


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Slow frequencies are divided by `factor`, fast ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int
    attention_factor: float = 1.0

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        waves = self.original * frequencies / (2 * math.pi)  # that the original context holds
        low, high = self.low_freq_factor, self.high_freq_factor
        # 0 for fewer than low_freq_factor waves, 1 for at least high_freq_factor. The two are
        # equal in Llama 4, without a range between them.
        keep = ((waves - low) / (high - low)).clamp(0, 1) if high > low else (waves >= high).float()
        return (1 - keep) * frequencies / self.factor + keep * frequencies


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Scales as YaRN does: between `fast` and `slow` rotations over the original context a ramp
    from the plain frequencies to those divided by `factor`; truncate: its ends are whole pairs."""

    factor: float
    original: int
    fast: float
    slow: float
    truncate: bool
    attention_factor: float

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        if rope.base_dim:
            raise ModelError(
                f"config.json: yarn rope of {rope.base_dim} rotating elements, an odd number, is "
                "not supported; use another partial_rotary_factor"
            )
        low, high = self._pair(self.fast, rope), self._pair(self.slow, rope)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rope.rotary_dim - 1)
        pairs = torch.arange(len(frequencies), dtype=torch.float32)
        ramp = ((pairs - low) / (max(high - low, 0.001))).clamp(0, 1)
        return frequencies / self.factor * ramp + frequencies * (1 - ramp)

    def _pair(self, rotations: float, rope: RopeConfig) -> float:
        """Return the pair that makes so many rotations over the original context."""
        turns = self.original / (rotations * 2 * math.pi)
        return rope.rotary_dim * math.log(turns) / (2 * math.log(rope.theta))


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """Scaling in which each frequency has its own divisor."""

    factors: tuple[float, ...]
    attention_factor: float

    def scale(self, frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
        if len(self.factors) != len(frequencies):
            raise ModelError(
                f"config.json: longrope names {len(self.factors)} factors for the "
                f"{len(frequencies)} pairs of a head"
            )
        return frequencies / torch.tensor(self.factors)


@dataclass(frozen=True, slots=True)
class RopeLimits:
    """Lengths that kinds of rope refer to: the model's own, the one it was trained for if
    config.json names it apart, and the longest that the engine serves."""

    max_position: int
    original: int | None
    longest: int


def rope_config(
    parameters: Mapping[str, Any],
    head_dim: int,
    limits: RopeLimits,
    *,
    interleaved: bool = False,
) -> RopeConfig:
    """Read one rope's parameters, with rope_theta among them. Raises `ModelError` naming a kind
    that is unknown or a key that is missing."""
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    share = float(parameters.get("partial_rotary_factor") or 1.0)
    read = _READERS.get(kind)
    if read is None:
        raise ModelError(
            f"config.json: rope type {kind!r} is not supported; known: {', '.join(_READERS)}"
        )
    try:
        scaling = read(parameters, limits)
        theta = float(parameters["rope_theta"])
    except KeyError as error:
        raise ModelError(f"config.json: the parameters of {kind} rope lack {error}") from error
    rotary_dim = int(head_dim * share)
    # The proportional kind has the frequencies of a whole head, of which the first rotate.
    if kind == "proportional":
        return RopeConfig(head_dim, 2 * int(share * head_dim // 2), theta, scaling, False, head_dim)
    # Of an odd number the last one's pair turns, too.
    odd = rotary_dim % 2
    base = rotary_dim if odd else 0
    return RopeConfig(head_dim, rotary_dim + odd, theta, scaling, interleaved, base)


def _linear(parameters: Mapping[str, Any], limits: RopeLimits) -> Scaling:
    return LinearScaling(float(parameters["factor"]))


def _proportional(parameters: Mapping[str, Any], limits: RopeLimits) -> Scaling:
    return LinearScaling(float(parameters.get("factor") or 1.0))


def _dynamic(parameters: Mapping[str, Any], limits: RopeLimits) -> Scaling:
    if parameters.get("alpha"):
        return AlphaScaling(float(parameters["alpha"]))
    return DynamicScaling(float(parameters["factor"]), limits.max_position, limits.longest)


def _llama3(parameters: Mapping[str, Any], limits: RopeLimits) -> Scaling:
    return Llama3Scaling(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original=int(parameters["original_max_position_embeddings"]),
    )


def _yarn(parameters: Mapping[str, Any], limits: RopeLimits) -> Scaling:
    original = _original(parameters, limits)
    factor = float(parameters.get("factor") or limits.max_position / original)
    given = parameters.get("attention_factor")
    mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if given is None and mscale and mscale_all:
        given = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
    truncate = parameters.get("truncate")
    return YarnScaling(
        factor=factor,
        original=original,
        fast=float(parameters.get("beta_fast") or 32),
        slow=float(parameters.get("beta_slow") or 1),
        truncate=True if truncate is None else bool(truncate),
        attention_factor=yarn_mscale(factor) if given is None else float(given),
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's factor of attention for a context that is `factor` times longer."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(parameters: Mapping[str, Any], limits: RopeLimits) -> Scaling:
    original = _original(parameters, limits)
    factor = float(parameters.get("factor") or limits.max_position / original)
    given = parameters.get("attention_factor")
    if given is None:
        given = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    # As with dynamic scaling, the longest length that is served decides for all.
    name = "long_factor" if limits.longest > original else "short_factor"
    return LongRopeScaling(tuple(float(value) for value in parameters[name]), float(given))


def _original(parameters: Mapping[str, Any], limits: RopeLimits) -> int:
    given = parameters.get("original_max_position_embeddings") or limits.original
    return int(given or limits.max_position)


_READERS = {
    "default": lambda parameters, limits: None,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Compute [rotary_dim / 2] float32, radians per position of each pair."""
    plain = _frequencies(rope.theta, rope.base_dim or rope.rotary_dim, rope.rotary_dim)
    return plain if rope.scaling is None else rope.scaling.scale(plain, rope)


def _frequencies(theta: float, dim: int, rotary_dim: int) -> torch.Tensor:
    pairs = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / theta**pairs


def cos_sin_table(rope: RopeConfig, max_position: int) -> torch.Tensor:
    """Compute [max_position, D] float32: D/2 cosines, then D/2 sines."""
    angles = torch.outer(torch.arange(max_position).float(), inverse_frequencies(rope))
    still = (rope.head_dim - rope.rotary_dim) // 2
    cosines, sines = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    cosines = nn.functional.pad(cosines, (0, still), value=1.0)
    return torch.cat((cosines, nn.functional.pad(sines, (0, still))), dim=-1)


def head_order(rope: RopeConfig) -> torch.Tensor | None:
    """Return [D] int64, the checkpoint's element at each place of a head here; None if the order is
    already the kernels'."""
    rotary, whole = rope.rotary_dim, rope.head_dim
    if not rope.interleaved and (rotary == whole or rope.base_dim == whole):
        return None
    turning = torch.arange(rotary)
    pairs = (
        (turning[0::2], turning[1::2])
        if rope.interleaved
        else (turning[: rotary // 2], turning[rotary // 2 :])
    )
    still = torch.arange(rotary, whole).chunk(2) if rotary < whole else (turning[:0], turning[:0])
    return torch.cat((pairs[0], still[0], pairs[1], still[1]))


def _axes(rope: RopeConfig) -> torch.Tensor | None:
    """Return [D / 2] int64, by which of time, height and width each pair rotates; None if all
    rotate by one position."""
    if rope.sections is None:
        return None
    with torch.device("cpu"):
        axes = torch.arange(rope.head_dim // 2) % 3
        for axis, count in enumerate(rope.sections):
            axes[3 * count :][axes[3 * count :] == axis] = 0
    return axes


class RotaryEmbedding(nn.Module):
    """The table of one kind of rope; layers of that kind share it. A rope that does not rotate is
    the same at every position, and so has a single row."""

    def __init__(self, rope: RopeConfig, max_position: int) -> None:
        super().__init__()
        self.cos_sin: torch.Tensor
        self._turns = rope.rotary_dim > 0
        self._axes = _axes(rope)
        with torch.device("cpu"):  # parameter-free: computed even where layers are meta
            table = cos_sin_table(rope, max_position if self._turns else 1)
            warmth = rope.temperature
            of_queries = None if warmth is None else warmth.table(max_position)
        self.register_buffer("cos_sin", table, persistent=False)
        self.query_scale: torch.Tensor | None
        self.register_buffer("query_scale", of_queries, persistent=False)

    def scale_queries(self, q: torch.Tensor, positions: torch.Tensor) -> None:
        """Multiply queries [T, ..] by their temperature, in place, if there is one."""
        if self.query_scale is not None:
            q.mul_(self.query_scale[positions].unsqueeze(1))

    def forward(
        self, positions: torch.Tensor, q_norm: NormWeight | None, k_norm: NormWeight | None
    ) -> Rotary:
        rows = positions if self._turns else torch.zeros_like(positions)
        shifts = None if self._axes is None else get_forward_context().shifts
        if shifts is None:
            return Rotary(self.cos_sin, rows, q_norm, k_norm)
        if id(self) not in shifts.per_step:
            shifts.per_step[id(self)] = self._shifted(rows, shifts.shifts)
        table, rows = shifts.per_step[id(self)]
        return Rotary(table, rows, q_norm, k_norm)

    def _shifted(
        self, positions: torch.Tensor, shifts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a table and its row for each token: the table of all positions, or if a token has
        several positions one of the step's tokens."""
        if shifts.dim() == 1:
            return self.cos_sin, positions + shifts
        assert self._axes is not None
        axes = upload(self._axes.numpy(), positions.device)
        at = (positions + shifts)[torch.cat((axes, axes))]  # [D, T]
        return self.cos_sin.gather(0, at.T), torch.arange(len(positions), device=positions.device)

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate x [T, heads, D] separately, for operations between the rotation and attention."""
        cosines, sines = self.cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
        first, second = x.float().chunk(2, dim=-1)
        parts = (first * cosines - second * sines, second * cosines + first * sines)
        return torch.cat(parts, dim=-1).to(x.dtype)

    def still(self, positions: torch.Tensor) -> Rotary:
        """Return a rotation by the table's first row, whose angles are 0."""
        return Rotary(self.cos_sin, torch.zeros_like(positions))
