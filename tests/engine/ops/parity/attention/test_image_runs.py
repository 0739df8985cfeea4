"""Tokens of an image attend to its later ones: each query beside a softmax of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import LayerShapes, OpCase
from atom.sizing.mask_rule import CAUSAL, MaskRule, sliding_window
from atom.utils.forward_context import AttentionMetaData
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, paged_case, poison

Runs = Sequence[tuple[int, int]]  # first and last position
# Context and queries of a row, and the runs among its queries: from its begin on, to its end, one
# behind another, longer than a tile of queries or of keys, and behind a history.
ROWS: list[tuple[tuple[int, int], Runs]] = [
    ((40, 1), ()),
    ((100, 1), ()),
    ((5, 5), ((0, 4),)),
    ((40, 40), ((3, 18), (20, 30), (31, 39))),
    ((33, 2), ((31, 32),)),
    ((300, 280), ((25, 180), (200, 299))),
    ((90, 17), ((74, 80),)),
    ((70, 30), ()),
]
MASKS = [CAUSAL, sliding_window(20), sliding_window(150)]


def with_last_seen(step: AttentionMetaData, seen: torch.Tensor | None) -> AttentionMetaData:
    return replace(step, prompts=replace(step.prompts, last_seen=seen))


def case_with_runs(mask: MaskRule, dtype: torch.dtype, device: torch.device) -> PagedCase:
    case = paged_case([row for row, _ in ROWS], device=device, dtype=dtype, mask=mask)
    last: list[int] = []
    for (context, queries), runs in ROWS:
        ends = {at: end for first, end in runs for at in range(first, end + 1)}
        last += [ends.get(at, at) for at in range(context - queries, context)]
    seen = torch.tensor(last, dtype=torch.int32, device=device)
    shape = replace(case.shape, sees_ahead=True)
    return replace(case, shape=shape, step=with_last_seen(case.step, seen))


def each_query_alone(case: PagedCase) -> torch.Tensor:
    """Compute every query over the keys that it sees, gathered one by one, in float64."""
    q, shape, cache, step = case.doubled
    found, index = torch.empty_like(q), 0
    assert step.prompts.last_seen is not None
    for row, ((context, queries), _) in enumerate(ROWS):
        for at in range(context - queries, context):
            first = max(0, shape.mask.first_seen(at))
            keys = torch.arange(first, int(step.prompts.last_seen[index]) + 1, device=q.device)
            blocks = step.block_tables[row][keys // cache.block_size].long()
            k, v = (each[blocks, keys % cache.block_size] for each in (cache.k, cache.v))
            group = shape.num_heads // shape.num_kv_heads
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            weights = (torch.einsum("hd,khd->hk", q[index], k) * shape.scale).softmax(dim=-1)
            found[index] = torch.einsum("hk,khd->hd", weights, v)
            index += 1
    return found.flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: f"{mask.kind} {mask.size}")
def test_a_run_is_seen_from_each_of_its_tokens(
    backend: Backend, device: torch.device, mask: MaskRule, dtype: torch.dtype
) -> None:
    case = case_with_runs(mask, dtype, device)
    asked = OpCase(dtype=dtype, kv_dtype=dtype, layers=LayerShapes(attention=(case.shape,)))
    if backend.reasons_against("paged_attention", asked):
        pytest.skip(f"{backend.name} leaves such layers to another backend")
    poison(case.q.shape, dtype, device)
    out = backend.operations["paged_attention"](*case.arguments)
    assert_rows_agree(out, each_query_alone(case), dtype)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: f"{mask.kind} {mask.size}")
def test_the_reference_sees_the_same(
    reference: Backend, device: torch.device, mask: MaskRule
) -> None:
    case = case_with_runs(mask, torch.float64, device)
    got = reference.operations["paged_attention"](*case.arguments)
    torch.testing.assert_close(got, each_query_alone(case))


def test_a_layer_that_does_not_see_ahead_stays_causal(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = case_with_runs(CAUSAL, torch.float32, device)
    case = replace(case, shape=replace(case.shape, sees_ahead=False))
    plain = replace(case, step=with_last_seen(case.step, None))
    out = backend.operations["paged_attention"](*case.arguments)
    assert_rows_agree(out, reference.operations["paged_attention"](*plain.doubled), torch.float32)
