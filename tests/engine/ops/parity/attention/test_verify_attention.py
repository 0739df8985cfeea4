"""Decodes of one sequence, a newest token and its drafts, attend as each does alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import LayerShapes, OpCase
from atom.sizing.mask_rule import chunked, sliding_window
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, in_runs, paged_case, poison

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
# Contexts and rows of each run: across blocks, from the first token on, and single rows.
RUNS = [(19, 6), (150, 3), (4, 4), (1, 1), (65, 2)]
LONGEST = 6


@pytest.fixture
def padding(takes_padding: bool) -> int:
    return 3 if takes_padding else 0


def check(backend: Backend, reference: Backend, case: PagedCase, padding: int) -> None:
    poison(case.q.shape, case.q.dtype, case.q.device)
    out = backend.operations["paged_attention"](*case.arguments)
    rows = len(case.q) - padding
    step = replace(
        case.step,
        query_starts=case.step.query_starts[: rows + 1],
        context_lens=case.step.context_lens[:rows],
        block_tables=case.step.block_tables[:rows],
        num_decodes=rows,
        runs=None,
    )
    alone = replace(case, q=case.q[:rows], step=step)
    expected = reference.operations["paged_attention"](*alone.doubled)
    assert_rows_agree(out[:rows], expected, case.q.dtype)
    assert torch.equal(out[rows:], torch.zeros_like(out[rows:])), "padding rows are zeros"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("max_context", [None, 4096])
def test_runs_of_different_lengths(
    backend: Backend, reference: Backend, device: torch.device, max_context: int | None,
    newest_first: bool, dtype: torch.dtype, padding: int,
) -> None:  # fmt: skip
    case = paged_case(RUNS, device=device, dtype=dtype, max_context=max_context)
    runs = in_runs(case, LONGEST, newest_first=newest_first, padding=padding)
    check(backend, reference, runs, padding)


@pytest.mark.parametrize(
    ("heads", "longest"),
    [
        ((2, 2), 6),
        ((4, 1), 17),
        ((7, 1), 6),
        ((6, 2), 3),
        ((24, 1), 4),
        ((5, 1), 17),
        pytest.param((32, 1), 17, marks=gpu),
        pytest.param((64, 4), 9, marks=gpu),
    ],
)
def test_any_group_of_query_heads(
    backend: Backend, reference: Backend, device: torch.device, heads: tuple[int, int],
    longest: int, padding: int,
) -> None:  # fmt: skip
    """Of many heads or rows a run is more than a tile."""
    case = paged_case(
        [(70, longest), (30, 2)], device=device, dtype=torch.float32, heads=heads, head_dim=16
    )
    check(backend, reference, in_runs(case, longest, padding=padding), padding)


@pytest.mark.parametrize("dtype", [torch.float16])
@pytest.mark.parametrize(
    ("head_dim", "block_size"), [(8, 16), (40, 1), (80, 48), (112, 16), (128, 256), (256, 32)]
)
def test_any_head_and_block_size(
    backend: Backend, reference: Backend, device: torch.device, head_dim: int, block_size: int,
    padding: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(
        [(37, 3), (80, 6)], device=device, dtype=dtype, head_dim=head_dim,
        block_size=block_size,
    )  # fmt: skip
    check(backend, reference, in_runs(case, LONGEST, padding=padding), padding)


@pytest.mark.parametrize(
    ("window", "max_context"), [(1, None), (20, None), (64, 4096), (100, None)]
)
def test_a_window_of_each_row(
    backend: Backend, reference: Backend, device: torch.device, window: int,
    max_context: int | None, padding: int,
) -> None:  # fmt: skip
    """A row's window begins where one before it does not see any more; tables lead to NaN before
    the first row's."""
    case = paged_case(
        [*RUNS, (180, 6)], device=device, dtype=torch.float32,
        mask=sliding_window(window), heads=(4, 1),
        max_context=max_context,
    )  # fmt: skip
    check(backend, reference, in_runs(case, LONGEST, padding=padding), padding)


@pytest.mark.parametrize(("chunk", "max_context"), [(1, None), (20, None), (64, 4096)])
def test_a_chunk_of_each_row(
    backend: Backend, reference: Backend, device: torch.device, chunk: int,
    max_context: int | None, padding: int,
) -> None:  # fmt: skip
    """Of a run that goes over the end of a chunk, rows behind it see nothing before."""
    case = paged_case(
        [*RUNS, (183, 6), (20, 2)], device=device, dtype=torch.float32,
        mask=chunked(chunk), heads=(4, 1), max_context=max_context,
    )  # fmt: skip
    check(backend, reference, in_runs(case, LONGEST, padding=padding), padding)


@pytest.mark.parametrize("window", [None, 20])
def test_scores_are_capped(
    backend: Backend, reference: Backend, device: torch.device, window: int | None, padding: int
) -> None:
    case = paged_case(
        RUNS, device=device, dtype=torch.float32, mask=sliding_window(window), softcap=5.0
    )
    asked = OpCase(
        dtype=torch.float32, kv_dtype=torch.float32, layers=LayerShapes(attention=(case.shape,))
    )
    if backend.reasons_against("paged_attention", asked):
        pytest.skip(f"{backend.name} leaves capped scores to the reference")
    runs = in_runs(replace(case, q=case.q * 8), LONGEST, padding=padding)
    check(backend, reference, runs, padding)


@pytest.mark.parametrize(("window", "max_context"), [(None, None), (20, 4096)])
def test_sinks_take_their_share_once(
    backend: Backend, reference: Backend, device: torch.device, window: int | None,
    max_context: int | None, padding: int,
) -> None:  # fmt: skip
    case = paged_case(
        [*RUNS, (90, 5)], device=device, dtype=torch.float32, heads=(6, 2),
        mask=sliding_window(window),
        sinks=True, max_context=max_context,
    )  # fmt: skip
    asked = OpCase(
        dtype=torch.float32, kv_dtype=torch.float32, layers=LayerShapes(attention=(case.shape,))
    )
    if backend.reasons_against("paged_attention", asked):
        pytest.skip(f"{backend.name} leaves sinks to another backend")
    check(backend, reference, in_runs(case, LONGEST, padding=padding), padding)


def test_runs_that_fill_the_card_are_split_where_one_may_outlast_the_rest(
    backend: Backend, reference: Backend, device: torch.device, padding: int
) -> None:
    rows = [(40 + 9 * row, 1 + row % 4) for row in range(6)]
    case = in_runs(paged_case(rows, device=device, dtype=torch.float32), 4, padding=padding)
    check(backend, reference, case, padding)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(16, 8), (32, 8), (8, 8), (40, 8), (64, 8), (64, 4)])
@pytest.mark.parametrize("sequences", [1, 16, 64])
def test_real_shapes(
    backend: Backend, reference: Backend, device: torch.device, sequences: int,
    heads: tuple[int, int], dtype: torch.dtype,
) -> None:  # fmt: skip
    rows = [(2500 - 97 * i % 2490, 1 + (i + 3) % 6) for i in range(sequences)]
    case = paged_case(rows, device=device, dtype=dtype, heads=heads, head_dim=128, max_context=8192)
    runs = in_runs(case, LONGEST, padding=7)
    poison(runs.q.shape, dtype, device)
    out = backend.operations["paged_attention"](*runs.arguments)
    prompts = replace(case, step=replace(case.step, num_decodes=0))
    assert_rows_agree(out[:-7], reference.operations["paged_attention"](*prompts.doubled), dtype)
    assert not out[-7:].any()
