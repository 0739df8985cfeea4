"""Long chunks behind a history, attended to by the library in pieces, equal the reference.

Without a card the CPU's operation stands for cuDNN's: it gives a log-sum-exp, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.triton_ops.attention import gqa
from atom.model_ops.backends.triton_ops.attention.long_chunks import chunk_attention, is_for_library
from atom.model_ops.backends.triton_ops.attention.paged_tiles import LayerStep
from atom.model_ops.backends.triton_ops.nvidia.cudnn_attention import piece_attention
from atom.model_ops.values import AttentionShape
from atom.sizing.mask_rule import MaskKind, MaskRule, sliding_window
from atom.utils import long_chunks as chunk_plan
from atom.utils.forward_context import LongChunk, PromptPlan
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, paged_case
from tests.engine.ops.reference_answers import assert_reference_answers
from tests.support.models.tiny_model import make_tiny_checkpoint

gpu = pytest.mark.gpu
HALVES = [torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
# A card's library computes in half precision alone.
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available()
    and (torch.version.hip is not None or torch.cuda.get_device_capability() < (9, 0)),
    reason="the library's operation is chosen on NVIDIA's cards from Hopper on",
)
# (context, queries): a decode, a chunk of two tiles between a head and a rest, a whole prompt, a
# chunk that is all tiles, one that is left alone.
ROWS = [(70, 1), (90, 73), (20, 20), (96, 32), (40, 9)]
CHUNKS = (
    LongChunk(1, 1, 73, head=15, history=(32,), tiles=(32, 16)),
    LongChunk(3, 94, 32, head=0, history=(32, 16, 16), tiles=(16, 16)),
)


def compute(backend: Backend, case: PagedCase) -> torch.Tensor:
    return backend.operations["paged_attention"](*case.arguments)


def expected(reference: Backend, case: PagedCase) -> torch.Tensor:
    return reference.operations["paged_attention"](*case.doubled)


def chunked(case: PagedCase, chunks: tuple[LongChunk, ...] = CHUNKS) -> PagedCase:
    return replace(case, step=replace(case.step, prompts=PromptPlan(chunks=chunks)))


def taken(case: PagedCase) -> tuple[LongChunk, ...]:
    layer = LayerStep(case.shape, case.cache, case.step)
    return tuple(
        chunk for chunk in case.step.prompts.chunks if is_for_library(case.q, layer, chunk)
    )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 2), (8, 1), (6, 2)])
def test_chunks_among_other_rows(
    backend: Backend, reference: Backend, device: torch.device, heads: tuple[int, int],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = chunked(paged_case(ROWS, device=device, dtype=dtype, heads=heads, head_dim=64))
    assert taken(case) == CHUNKS
    assert_rows_agree(compute(backend, case), expected(reference, case), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 1), (128, 16), (80, 48), (64, 256)])
def test_any_block_and_head_size(
    backend: Backend, reference: Backend, device: torch.device, head_dim: int, block_size: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(ROWS, device=device, dtype=dtype, head_dim=head_dim, block_size=block_size)
    case = chunked(case)
    assert taken(case) == CHUNKS
    assert_rows_agree(compute(backend, case), expected(reference, case), dtype)


def test_pieces_of_unlike_scores_are_weighed(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    """Scores of thousands: nearly all of a softmax is in one piece, another for each query."""
    case = chunked(paged_case(ROWS, device=device, dtype=torch.float16, head_dim=64))
    case = replace(case, q=case.q * 30)
    assert_rows_agree(compute(backend, case), expected(reference, case), torch.float16, slack=20)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_librarys_sums_are_natural_logarithms(device: torch.device, is_causal: bool) -> None:
    q, k, v = (torch.randn(32, heads, 64, device=device).half() for heads in (8, 2, 2))
    attend = piece_attention(q, AttentionShape(8, 2, 64, 0.3))
    assert attend is not None
    result, sums = attend(q, k, v, is_causal, 0.3)
    assert result.shape == q.shape
    assert result.is_contiguous()
    assert sums.is_contiguous()
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double().repeat_interleave(4, 1)) * 0.3
    if is_causal:
        later = torch.ones(32, 32, device=device).triu(1).bool()
        scores = scores.masked_fill(later, -torch.inf)
    torch.testing.assert_close(sums.double(), scores.logsumexp(-1), rtol=1e-3, atol=1e-3)
    values = v.double().repeat_interleave(4, 1)
    want = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    assert_rows_agree(result, want, torch.float16)


@pytest.mark.parametrize(
    "other",
    [
        {"mask": sliding_window(50)},
        {"mask": MaskRule(MaskKind.CHUNKED, 64)},
        {"softcap": 5.0},
        {"sinks": True},
    ],
    ids=["window", "chunks", "cap", "sinks"],
)
def test_what_the_library_does_not_know_goes_to_the_paged_kernel(
    backend: Backend, reference: Backend, device: torch.device, other: dict[str, float]
) -> None:
    case = paged_case(ROWS, device=device, dtype=torch.float16, head_dim=64, **other)
    case = chunked(case)
    assert taken(case) == ()
    assert_rows_agree(compute(backend, case), expected(reference, case), torch.float16)


def test_a_window_that_none_of_a_chunk_leaves_is_none(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = paged_case(
        ROWS, device=device, dtype=torch.float16, head_dim=64, mask=sliding_window(84)
    )
    case = chunked(case)
    assert taken(case) == CHUNKS[:1]
    assert_rows_agree(compute(backend, case), expected(reference, case), torch.float16)


def test_an_engine_attends_to_its_chunks_in_pieces(
    backend: Backend, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt of 30 tokens is behind another in steps of 24. In float32, which a card's library
    leaves to the paged kernel."""
    monkeypatch.setattr(chunk_plan, "_LENGTHS", (8, 4, 2))
    monkeypatch.setattr(chunk_plan, "_LEAST_SEEN", 0)
    attended: list[LongChunk] = []

    def attend(q: torch.Tensor, layer: LayerStep, chunk: LongChunk, out: torch.Tensor) -> None:
        attended.append(chunk)
        chunk_attention(q, layer, chunk, out)

    monkeypatch.setattr(gqa, "chunk_attention", attend)
    folder = make_tiny_checkpoint(tmp_path, "qwen3")
    operations = "qk_norm_rope_store", "paged_attention"
    assert_reference_answers(folder, backend, device, operations)
    assert bool(attended) == (device.type == "cpu")


REAL = [
    [(20_000, 1), (16_384, 8192), (30_001, 16_383), (5000, 5000)],
    [(12_999, 9500), (20_000, 5000), (4097, 4000), (12_000, 300)],
]


@gpu
@pytest.mark.parametrize("rows", REAL, ids=["long", "shorter"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"),
    [((8, 8), 64, 16), ((16, 8), 128, 16), ((32, 8), 128, 256), ((16, 2), 64, 256),
     ((32, 8), 80, 48)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_real_chunks(
    backend: Backend, device: torch.device, rows: list[tuple[int, int]], heads: tuple[int, int],
    head_dim: int, block_size: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Beside the paged kernel's: a reference of such sizes would not fit in memory."""
    case = paged_case(
        rows, device=device, dtype=dtype, heads=heads, head_dim=head_dim, block_size=block_size
    )
    contexts, queries = np.array(rows).T
    chunks = chunk_plan.long_chunks(contexts - queries, queries, case.step.num_decodes)
    assert len(chunks) == 2
    whole = compute(backend, case)
    case = chunked(case, chunks)
    assert taken(case) == chunks
    assert_rows_agree(compute(backend, case), whole, dtype, slack=2)
