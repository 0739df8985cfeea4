"""Attention over the paged cache equals a float64 reference: decodes, prompts, chunks, mixtures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import LayerShapes, OpCase
from atom.sizing.mask_rule import chunked, sliding_window
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, padded_step, paged_case, poison

gpu = pytest.mark.gpu
# The interpreter multiplies bfloat16 as the integers it is stored in: on GPUs only.
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
DECODES = [(1, 1), (16, 1), (17, 1), (100, 1), (63, 1)]
CHUNKS = [(5, 5), (40, 40), (33, 2), (90, 17)]  # whole prompts, and chunks behind a history


def compute(backend: Backend, case: PagedCase) -> torch.Tensor:
    poison(case.q.shape, case.q.dtype, case.q.device)
    return backend.operations["paged_attention"](*case.arguments)


def expected(reference: Backend, case: PagedCase) -> torch.Tensor:
    return reference.operations["paged_attention"](*case.doubled)


def check(backend: Backend, reference: Backend, case: PagedCase) -> None:
    out = compute(backend, case)
    assert_rows_agree(out, expected(reference, case), case.q.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rows", [DECODES, CHUNKS, DECODES + CHUNKS], ids=["decode", "prefill", "mixed"]
)
def test_ragged_rows(
    backend: Backend, reference: Backend, device: torch.device,
    rows: list[tuple[int, int]], dtype: torch.dtype,
) -> None:  # fmt: skip
    check(backend, reference, paged_case(rows, device=device, dtype=dtype))


@pytest.mark.parametrize(
    "heads", [(2, 2), (4, 1), (7, 1), (6, 2), pytest.param((32, 1), marks=gpu)]
)
def test_any_group_of_query_heads(
    backend: Backend, reference: Backend, device: torch.device, heads: tuple[int, int]
) -> None:
    rows = [(30, 1), (50, 1), (70, 21)]
    case = paged_case(rows, device=device, dtype=torch.float32, heads=heads, head_dim=16)
    check(backend, reference, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("block_size", [1, 16, 32, 48, 64, 256])
def test_any_block_size(
    backend: Backend, reference: Backend, device: torch.device, block_size: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    rows = [(130, 1), (80, 20)]
    case = paged_case(rows, device=device, dtype=dtype, block_size=block_size, head_dim=16)
    check(backend, reference, case)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [8, 16, 40, 64, 80, 96, 112, 128, 256])
def test_any_head_size(
    backend: Backend, reference: Backend, device: torch.device, head_dim: int, dtype: torch.dtype
) -> None:
    case = paged_case([(37, 1), (40, 9)], device=device, dtype=dtype, head_dim=head_dim)
    check(backend, reference, case)


WINDOWED = [(5, 1), (200, 1), (64, 1), (40, 40), (170, 30), (90, 90), (300, 7)]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [1, 20, 64, 1000])
@pytest.mark.parametrize(("head_dim", "block_size"), [(32, 16), (80, 48), (16, 1)])
def test_a_window_of_the_newest_tokens(
    backend: Backend, reference: Backend, device: torch.device, window: int, head_dim: int,
    block_size: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(
        WINDOWED, device=device, dtype=dtype, head_dim=head_dim, block_size=block_size,
        mask=sliding_window(window),
    )  # fmt: skip
    check(backend, reference, case)


def test_a_window_of_a_long_context_is_split(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = paged_case(
        [(1900, 1), (700, 1), (3, 1)], device=device, dtype=torch.float32, head_dim=16,
        mask=sliding_window(600),
        max_context=4096,
    )  # fmt: skip
    check(backend, reference, case)


# A query at the first token of a chunk, at its last, rows of several chunks, tiles over two.
CHUNKED = [(20, 1), (21, 1), (200, 1), (64, 1), (65, 1), (40, 40), (170, 30), (129, 129), (300, 7)]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("chunk", [1, 20, 64, 1000])
@pytest.mark.parametrize(("head_dim", "block_size"), [(32, 16), (80, 48)])
def test_chunks_that_lie_end_to_end(
    backend: Backend, reference: Backend, device: torch.device, chunk: int, head_dim: int,
    block_size: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(
        CHUNKED, device=device, dtype=dtype, head_dim=head_dim, block_size=block_size,
        mask=chunked(chunk),
    )  # fmt: skip
    check(backend, reference, case)


def test_a_chunk_of_a_long_context_is_split(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = paged_case(
        [(1900, 1), (1201, 1), (600, 1), (3, 1)], device=device, dtype=torch.float32, head_dim=16,
        mask=chunked(600), max_context=4096,
    )  # fmt: skip
    check(backend, reference, case)


def test_a_chunk_is_what_the_oracle_says(reference: Backend, device: torch.device) -> None:
    """The reference by another road: each query alone over the tokens of its chunk."""
    case = paged_case([(50, 1), (45, 33)], device=device, dtype=torch.float64, mask=chunked(20))
    got = reference.operations["paged_attention"](*case.arguments)
    positions = [49, *range(12, 45)]
    for query, at in enumerate(positions):
        row, seen = min(query, 1), at % 20 + 1
        alone = replace(
            case,
            q=case.q[query : query + 1],
            shape=replace(case.shape, mask=sliding_window(seen)),
            step=replace(
                case.step,
                query_starts=torch.tensor([0, 1], dtype=torch.int32, device=device),
                context_lens=torch.tensor([at + 1], dtype=torch.int32, device=device),
                block_tables=case.step.block_tables[row : row + 1],
                num_decodes=1,
            ),
        )
        expected = reference.operations["paged_attention"](*alone.arguments)
        torch.testing.assert_close(got[query : query + 1], expected)


@pytest.mark.parametrize("window", [None, 20])
def test_scores_are_capped(
    backend: Backend, reference: Backend, device: torch.device, window: int | None
) -> None:
    case = paged_case(
        DECODES + CHUNKS,
        device=device,
        dtype=torch.float32,
        mask=sliding_window(window),
        softcap=5.0,
    )
    if backend.reasons_against("paged_attention", case_of(case)):
        pytest.skip(f"{backend.name} leaves capped scores to the reference")
    case = replace(case, q=case.q * 8)  # scores far beyond the cap
    check(backend, reference, case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("window", [None, 20])
def test_sinks_take_their_share(
    backend: Backend, reference: Backend, device: torch.device, window: int | None,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(
        [*DECODES, (300, 1), *CHUNKS], device=device, dtype=dtype, heads=(6, 3),
        mask=sliding_window(window),
        sinks=True,
    )  # fmt: skip
    if backend.reasons_against("paged_attention", case_of(case)):
        pytest.skip(f"{backend.name} leaves sinks to another backend")
    check(backend, reference, case)
    without = replace(case, shape=replace(case.shape, has_sinks=False, sinks=None))
    assert not torch.allclose(compute(backend, case), compute(backend, without), atol=1e-2)


def case_of(case: PagedCase) -> OpCase:
    return OpCase(
        dtype=case.q.dtype, kv_dtype=case.q.dtype, layers=LayerShapes(attention=(case.shape,))
    )


@pytest.mark.parametrize("max_context", [200, 512, 4096])
def test_a_captured_decode_step_knows_only_the_largest_context(
    backend: Backend, reference: Backend, device: torch.device, max_context: int,
    takes_padding: bool,
) -> None:  # fmt: skip
    """The splits follow from the capacity; the rows use as much of it as they need."""
    if not takes_padding:
        pytest.skip(f"{backend.name} is not captured into graphs")
    rows = [(1, 1), (200, 1), (0, 1), (130, 1)]
    case = paged_case(rows, device=device, dtype=torch.float32, max_context=max_context)
    out = compute(backend, case)
    assert torch.equal(out[2], torch.zeros_like(out[2])), "padding rows are zeros"
    real = torch.tensor([0, 1, 3], device=device)
    only = replace(
        case.step,
        context_lens=case.step.context_lens[real],
        block_tables=case.step.block_tables[real],
        query_starts=case.step.query_starts[:4],
        num_decodes=3,
    )
    subset = replace(case, q=case.q[real], step=only)
    assert_rows_agree(out[real], expected(reference, subset), torch.float32)


@pytest.mark.parametrize("window", [None, 24])
def test_a_captured_step_with_prompts_is_larger_than_its_rows(
    backend: Backend, reference: Backend, device: torch.device, window: int | None,
    takes_padding: bool,
) -> None:  # fmt: skip
    """Behind its decodes are some of context 0, behind its prompts rows and tokens of nothing."""
    if not takes_padding:
        pytest.skip(f"{backend.name} is not captured into graphs")
    rows = [(130, 1), (0, 1), (0, 1), (90, 37), (5, 5)]
    case = paged_case(
        rows, device=device, dtype=torch.float32, max_context=512, mask=sliding_window(window)
    )  # fmt: skip
    want = expected(reference, case)
    more = torch.randn((70, *case.q.shape[1:]), device=device)
    padded = replace(case, q=torch.cat((case.q, more)), step=padded_step(case.step, 3, len(more)))
    out = compute(backend, padded)
    assert_rows_agree(out[: len(want)], want, torch.float32)
    nothing = torch.cat((out[1:3], out[len(want) :]))
    assert torch.equal(nothing, torch.zeros_like(nothing))


def test_large_scores_do_not_overflow(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = paged_case([(70, 1), (50, 30)], device=device, dtype=torch.float32)
    # Scores of thousands: the softmax is nearly a choice, and errors of scores weigh in full.
    out, want = (
        f(backend_or_reference, replace(case, q=case.q * 300))
        for f, backend_or_reference in ((compute, backend), (expected, reference))
    )
    assert_rows_agree(out, want, torch.float32, slack=100)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(16, 8), (32, 8), (8, 8), (40, 8)])
def test_real_shapes(
    backend: Backend, reference: Backend, device: torch.device, heads: tuple[int, int],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    decodes = [(1 + 97 * i % 2500, 1) for i in range(33)]
    chunks = [(700, 700), (1500, 400), (33, 32), (2048, 1025)]
    for rows in (decodes, chunks, decodes[:3] + chunks):
        case = paged_case(rows, device=device, dtype=dtype, heads=heads, head_dim=128)
        check(backend, reference, case)
