"""What is computed by hand of one model; the keys of every table are tensor-parallel sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """`weights`: bytes as the checkpoint stores them. `kv_token`: bytes of a token in a bf16 cache,
    of the layers that keep every token; `fp8_token` likewise in fp8, with its scales. `window`:
    bytes of a token of the layers that keep only `window_tokens`, `padding_bytes` what their groups
    leave unused beside it. `expert_weights`: whole experts
    on each device. `draft_weights`, `draft_token`: of the multi-token prediction layers.
    `tables_bytes`: of integers, in which no type of elements changes a byte."""

    weights: Mapping[int, int]
    kv_token: Mapping[int, int]
    fp8_token: Mapping[int, int] = field(default_factory=dict)
    window: Mapping[int, int] = field(default_factory=dict)
    window_tokens: int = 0
    padding_bytes: int = 0
    expert_weights: Mapping[int, int] = field(default_factory=dict)
    draft_weights: Mapping[int, int] = field(default_factory=dict)
    draft_token: Mapping[int, int] = field(default_factory=dict)
    tables_bytes: int = 0


def fp8(rows: int, columns: int) -> int:
    """A byte per element, and a float32 for every begun block of 128 x 128."""
    return rows * columns + 4 * -(-rows // 128) * -(-columns // 128)
