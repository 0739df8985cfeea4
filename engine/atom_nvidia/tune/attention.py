"""Measure the cost of the attention kernels' configurations: the geometric mean over usual
batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from atom.model_ops.backends.triton_ops.attention.benchmark_cases import (
    AttentionCase,
    attention_case,
)
from atom.model_ops.backends.triton_ops.attention.decode_append import decode_append_attention
from atom.model_ops.backends.triton_ops.attention.paged_tiles import LayerStep
from atom.model_ops.backends.triton_ops.attention.prefill import RowSpan, prefill_attention
from atom.model_ops.backends.triton_ops.compile import tuning
from atom.model_ops.backends.triton_ops.compile.tuning import DecodeConfig, PrefillConfig
from atom.model_ops.backends.triton_ops.timing import copies_beyond_cache, graph_microseconds
from atom_nvidia.tune.search import best

_CAPACITY = 4096
# Of every name in tuning.DECODE_BATCHES.
_DECODE_BATCHES = ((1, 8, 32), (64, 96, 128), (144, 160, 176, 192), (208, 224, 240, 256))
_GROUPS = (2, 4)


def decode_candidates() -> Iterator[DecodeConfig]:
    for (block_n, warps), stages, programs in itertools.product(
        ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4)), (2, 3, 4), (4, 8)
    ):
        yield DecodeConfig(block_n, warps, stages, programs)


def prefill_candidates() -> Iterator[PrefillConfig]:
    for block_m, block_n, warps, stages in itertools.product(
        (64, 128), (32, 64, 128), (4, 8), (2, 3)
    ):
        for registers in (None,) if torch.version.hip else (None, 128):
            yield PrefillConfig(block_m, block_n, warps, stages, registers)


def tune_decode(head_dim: int, report: Callable[[str], None]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for batches in _DECODE_BATCHES:
        timed = best(list(decode_candidates()), measure_decode(head_dim, batches))
        table[tuning.decode_key(head_dim, 2, batches[-1])] = asdict(timed[0][1])
        for cost, config in timed[:5]:
            report(f"  decode {batches} {cost:8.2f} µs (geometric mean)  {config}")
    return table


def tune_prefill(head_dim: int, report: Callable[[str], None]) -> dict[str, Any]:
    timed = best(list(prefill_candidates()), measure_prefill(head_dim))
    for cost, config in timed[:5]:
        report(f"  prefill {cost:8.2f} µs (geometric mean)  {config}")
    return {tuning.attention_key(head_dim, 2): asdict(timed[0][1])}


def measure_decode(head_dim: int, batches: Sequence[int]) -> Callable[[DecodeConfig], float]:
    """Measure each batch with equal contexts, and with those of a running server: from near zero to
    twice the mean."""
    cases = []
    for group in _GROUPS:
        for rows in batches:
            copies = copies_beyond_cache(rows * 1024 * 8 * head_dim * 4, most=32)
            for contexts in ([1024] * rows, torch.randint(100, 2000, (rows,)).tolist()):
                cases.append(_decode_case(contexts, group, head_dim, copies))

    def cost(config: DecodeConfig) -> float:
        return _geometric_mean(
            [graph_microseconds(_decode_calls(case, config), 3) for case in cases]
        )

    return cost


def measure_prefill(head_dim: int) -> Callable[[PrefillConfig], float]:
    lengths = [[4096] * 4, [512] * 16]
    cases = [
        attention_case(rows, rows, heads=(8 * group, 8), head_dim=head_dim)
        for rows in lengths
        for group in _GROUPS
    ]

    def cost(config: PrefillConfig) -> float:
        return _geometric_mean(
            [graph_microseconds([_prefill_call(case, config)], 3) for case in cases]
        )

    return cost


def compile_attention(config: DecodeConfig | PrefillConfig, head_dim: int) -> None:
    """Launch every specialisation that the measurements use, on tiny inputs."""
    for group in _GROUPS:
        heads = (8 * group, 8)
        if isinstance(config, PrefillConfig):
            case = attention_case([4], [4], heads=heads, head_dim=head_dim)
            _prefill_call(case, config)()
            continue
        for max_context in (16, _CAPACITY):  # without splits, and with
            case = attention_case(
                [16], [1], heads=heads, head_dim=head_dim, max_context=max_context
            )
            _decode_calls(case, config)[0]()


def _decode_case(contexts: list[int], group: int, head_dim: int, copies: int) -> AttentionCase:
    return attention_case(
        contexts, [1] * len(contexts), heads=(8 * group, 8), head_dim=head_dim,
        max_context=_CAPACITY, copies=copies,
    )  # fmt: skip


def _decode_calls(case: AttentionCase, config: DecodeConfig) -> list[Callable[[], Any]]:
    out = torch.empty_like(case.q)
    return [
        partial(
            decode_append_attention,
            case.qkv,
            LayerStep(case.shape, cache, case.metadata),
            out,
            case.rotary,
            config,
        )
        for cache in case.caches
    ]


def _prefill_call(case: AttentionCase, config: PrefillConfig) -> Callable[[], Any]:
    q = case.q
    span = RowSpan(0, len(case.contexts), len(q))
    return partial(
        prefill_attention, q, LayerStep(case.shape, case.caches[0], case.metadata), span,
        torch.empty_like(q), config,
    )  # fmt: skip


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
