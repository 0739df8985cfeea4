"""AttentionCall: the call that a layer of transformers' class makes of its attention.

The class passes queries, keys and values that are projected, normed and rotated already. The
engine's attention computes the rest, so the call's settings are all that the engine must know. A
setting that is not read here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from atom.model_ops.values import AttentionShape
from atom.sizing.layers import FallbackFacts
from atom.sizing.mask_rule import sliding_window

# Settings of a call that decide nothing: positions are in the rotated heads already.
_DECIDES_NOTHING = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "logits_to_keep",
        "layer_idx",
    }
)


class FallbackRefusalError(Exception):
    """A class of transformers cannot be computed with the engine's attention; the message has the
    module or field, and the reason."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Queries [1, Hq, T, D], keys and values [1, Hkv, T, D] of one call."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The settings of one layer's attention. module: its name in the class; window: the newest
    tokens that a query attends to, None for all."""

    module: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None

    @property
    def shape(self) -> AttentionShape:
        """Return the shape by which the engine's operations attend."""
        return AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            mask=sliding_window(self.window),
            softcap=self.softcap,
        )

    @property
    def kind(self) -> tuple[bool, bool]:
        """Return the rules that the layer has: whether scores are bounded, and a window."""
        return self.softcap is not None, self.window is not None

    @classmethod
    def read(cls, module: str, heads: Heads, given: Mapping[str, Any]) -> AttentionCall:
        """Read a call. Raises `FallbackRefusalError` for a setting that is not known here."""
        _, num_heads, _, size = heads.queries.shape
        num_kv_heads, key_size, value_size = (
            heads.keys.shape[1], heads.keys.shape[3], heads.values.shape[3],
        )  # fmt: skip
        if not size == key_size == value_size:
            raise FallbackRefusalError(
                f"{module}: heads of queries, keys and values have {size}, {key_size} and "
                f"{value_size} elements; the cache needs one size"
            )
        if num_heads % num_kv_heads:
            raise FallbackRefusalError(f"{module}: {num_kv_heads} KV heads of {num_heads} heads")
        settings = dict(given)
        scale = settings.pop("scaling", None)
        found = cls(
            module,
            num_heads,
            num_kv_heads,
            size,
            scale=size**-0.5 if scale is None else _number(module, "scaling", scale),
            softcap=settings.pop("softcap", None),
            window=settings.pop("sliding_window", None) or None,
        )
        for name, value in settings.items():
            if name in _DECIDES_NOTHING or value is None or value is False:
                continue
            if (name == "dropout" and value == 0) or (name == "is_causal" and value is True):
                continue
            raise FallbackRefusalError(
                f"{module}: passes {name} to its attention, which the engine's does not know"
            )
        return found


@dataclass(frozen=True, slots=True)
class FallbackSpec:
    """A class of transformers to compute. config: its configuration, a PretrainedConfig; calls: of
    its layers' attention, in the order of the layers; renamed: names of tensors in checkpoints, by
    the class's own names, as far as these differ; weights: the class's own count of them, None if
    nothing asks for it."""

    config: Any = field(compare=False)
    architecture: str
    calls: tuple[AttentionCall, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    weights: FallbackFacts | None = None


def _number(module: str, name: str, value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise FallbackRefusalError(f"{module}: {name} of its attention is no number, but a tensor")
