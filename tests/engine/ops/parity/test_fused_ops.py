"""A fused operation equals the single ones it stands for, composed over the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_ops.backends.composed import COMPOSED
from atom.model_ops.backends.interface import FUSED_OPS, OPS, AttentionShape, Backend, Ops
from atom.utils.forward_context import AttentionMetaData, EqualPrompts
from atom.utils.row_groups import are_even, long_prompts
from tests.engine.ops.inputs import TOLERANCE, assert_rows_agree, paged_case

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]


def test_the_backend_provides_every_operation(backend: Backend) -> None:
    """One that it left to the reference would keep every step out of its graphs."""
    assert set(OPS) | set(FUSED_OPS) <= set(backend.operations)


@pytest.fixture
def fused(backend: Backend) -> Backend:
    assert set(FUSED_OPS) <= set(backend.operations)
    return backend


def composed(reference: Backend, op: str) -> Any:
    ops = cast(Ops, SimpleNamespace(**reference.operations))
    return partial(COMPOSED[op], ops)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["norm_linear", "norm_gated_linear"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(("tokens", "outputs", "inner"), [(1, 20, 96), (1, 16, 64), (5, 16, 64)])
def test_norm_and_product(
    fused: Backend, reference: Backend, device: torch.device, tokens: int, outputs: int,
    inner: int, begins: bool, bias: bool, op: str, dtype: torch.dtype,
) -> None:  # fmt: skip
    draw = partial(torch.randn, device=device)
    x = draw(tokens, inner).to(dtype)
    residual = None if begins else draw(tokens, inner).to(dtype)
    norm = draw(inner).to(dtype)
    weight = (draw(outputs, inner) / inner**0.5).to(dtype)
    offset = draw(outputs).to(dtype) if bias else None
    # In double: what the dtype's roundings do to the reference itself is no yardstick.
    expected, _ = composed(reference, op)(
        x.double(), None if residual is None else residual.double(), norm.double(), 1e-6,
        weight.double(), None if offset is None else offset.double(),
    )  # fmt: skip
    expected_residual = x if residual is None else x + residual
    out, after = fused.operations[op](
        x.clone(), None if residual is None else residual.clone(), norm, 1e-6, weight, offset
    )
    assert torch.equal(after, expected_residual)
    # Gate, activation, up and their product are rounded one after the other, and one of ten
    # outputs may be most of the row.
    assert_rows_agree(out, expected, dtype, slack=2.0)


@pytest.mark.gpu
@pytest.mark.parametrize("inner", [1024, 4096, 5120])
@pytest.mark.parametrize("op", ["norm_linear", "norm_gated_linear"])
def test_norm_and_product_of_real_shapes(
    fused: Backend, reference: Backend, device: torch.device, op: str, inner: int
) -> None:
    x, residual = (torch.randn(1, inner, device=device).bfloat16() for _ in range(2))
    norm = torch.randn(inner, device=device).bfloat16()
    weight = (torch.randn(6144, inner, device=device) / inner**0.5).bfloat16()
    args = (norm, 1e-6, weight, None)
    expected, expected_residual = composed(reference, op)(x.clone(), residual.clone(), *args)
    out, after = fused.operations[op](x.clone(), residual.clone(), *args)
    assert torch.equal(after, expected_residual)
    assert_rows_agree(out, expected, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [2, 17, pytest.param(64, marks=gpu), 2048])
@pytest.mark.parametrize(("outputs", "inner"), [(64, 128), pytest.param(1024, 3072, marks=gpu)])
def test_an_addend_and_the_norm_that_adds_it(
    fused: Backend, reference: Backend, device: torch.device, outputs: int, inner: int,
    tokens: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, inner, device=device).to(dtype)
    weight = (torch.randn(outputs, inner, device=device) / inner**0.5).to(dtype)
    residual, norm = (torch.randn(n, outputs, device=device).to(dtype) for n in (tokens, 1))
    product = reference.operations["linear"](x.double(), weight.double(), None)
    expected = reference.operations["add_rms_norm"](
        product, residual.double(), norm[0].double(), 1e-6
    )
    out = normed(fused, *linear_addend(fused, x, weight, residual), norm[0])
    for got, want in zip(out, expected, strict=True):
        assert got.dtype == dtype
        assert_rows_agree(got, want, dtype)


def linear_addend(
    backend: Backend, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    pair: tuple[torch.Tensor, torch.Tensor | None] = backend.operations["linear_addend"](
        x, weight, None, residual.clone()
    )
    return pair


def normed(
    backend: Backend, x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As a layer does: without a residual x begins it."""
    if residual is None:
        return backend.operations["rms_norm"](x, norm, 1e-6), x
    pair: tuple[torch.Tensor, torch.Tensor] = backend.operations["add_rms_norm"](
        x, residual, norm, 1e-6
    )
    return pair


DECODES = [(1, 1), (100, 1), (33, 1), (64, 1)]
CHUNKS = [(40, 40), (33, 2), (90, 17)]
PROMPTS = [(7, 7), (2048, 2048), (2048, 2048), (30, 30)]
ODD_PROMPTS = [(7, 7), (4133, 4133), (30, 30)]


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "heads", "head_dim", "max_context"),
    [
        (DECODES, (4, 2), 32, None),
        (DECODES, (7, 1), 16, 4096),
        (DECODES + CHUNKS, (4, 2), 32, None),
        (CHUNKS, (4, 4), 16, None),
        pytest.param(DECODES + PROMPTS, (16, 8), 128, None, marks=gpu),
        pytest.param(DECODES + ODD_PROMPTS, (16, 8), 64, None, marks=gpu),
        pytest.param([(1 + 97 * i % 2500, 1) for i in range(70)], (32, 8), 128, 4096, marks=gpu),
    ],
)
def test_attention_from_the_projection(
    fused: Backend, reference: Backend, device: torch.device, rows: list[tuple[int, int]],
    heads: tuple[int, int], head_dim: int, max_context: int | None, norm: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(
        rows, device=device, dtype=dtype, heads=heads, head_dim=head_dim, max_context=max_context
    )
    contexts = torch.tensor([context for context, _ in rows])
    counts = torch.tensor([queries for _, queries in rows])
    qkv = torch.randn(int(counts.sum()), (heads[0] + 2 * heads[1]) * head_dim, device=device)
    qkv = qkv.to(dtype)
    weights = [torch.randn(head_dim, device=device).to(dtype) if norm else None for _ in range(2)]
    longest = int(contexts.max())
    angles = torch.rand(longest, head_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions, metadata = place(case.metadata, contexts, counts)
    caches = [cache.nan_to_num(0.0) for cache in (case.k_cache, case.v_cache)]
    twins = [cache.clone() for cache in caches]
    shape = AttentionShape(*heads, head_dim, head_dim**-0.5)
    args = (shape, *weights, 1e-6, cos_sin, positions)
    expected = composed(reference, "attention")(qkv.clone(), *args, *twins, metadata)
    out = fused.operations["attention"](qkv.clone(), *args, *caches, metadata)
    # Both sides round what they rotate, and a key's error weighs more the larger its score: of
    # thousands of rows the worst of the reference's own is off by three limits from float64.
    assert_rows_agree(out, expected, dtype, slack=4)
    # The reference rotates in the dtype, with cosines rounded to it: two roundings more.
    torch.testing.assert_close(
        caches[0].float(), twins[0].float(), rtol=0, atol=12 * TOLERANCE[dtype]
    )
    assert torch.equal(caches[1], twins[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rest_of_a_prompt_whose_leading_part_is_dense(
    fused: Backend, reference: Backend, device: torch.device, dtype: torch.dtype
) -> None:
    rows = [(33, 1), (40, 40), (90, 90), (50, 2)]
    case = paged_case(rows, device=device, dtype=dtype, heads=(4, 2), head_dim=32)
    contexts, counts = torch.tensor(rows).T
    qkv = torch.randn(int(counts.sum()), 8 * 32, device=device).to(dtype)
    cos_sin = torch.randn(90, 32, device=device)
    positions, metadata = place(case.metadata, contexts, counts)
    metadata = replace(metadata, long_prompts=(EqualPrompts(2, 1, 41, 90, leading=64),))
    caches = [cache.nan_to_num(0.0) for cache in (case.k_cache, case.v_cache)]
    args = (AttentionShape(4, 2, 32, 32**-0.5), None, None, 1e-6, cos_sin, positions)
    expected = composed(reference, "attention")(
        qkv.clone(), *args, *[cache.clone() for cache in caches], metadata
    )
    out = fused.operations["attention"](qkv.clone(), *args, *caches, metadata)
    assert_rows_agree(out, expected, dtype, slack=3)


def place(
    metadata: AttentionMetaData, contexts: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, AttentionMetaData]:
    """Positions of the step's tokens, and the metadata with the slots that they are stored in and
    all that a host says about the rows."""
    device = metadata.block_tables.device
    pairs = zip((contexts - counts).tolist(), contexts.tolist(), strict=True)
    positions = torch.cat([torch.arange(first, end) for first, end in pairs]).to(device)
    row = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)
    slots = metadata.block_tables[row, positions // 16].long() * 16 + positions % 16
    decodes = metadata.num_decodes
    computed, scheduled = (contexts - counts).numpy(), counts.numpy()
    return positions, AttentionMetaData(
        query_starts=metadata.query_starts,
        context_lens=metadata.context_lens,
        block_tables=metadata.block_tables,
        slot_mapping=slots,
        num_decodes=decodes,
        max_query_len=metadata.max_query_len,
        max_context_len=metadata.max_context_len,
        even_contexts=are_even(contexts[:decodes].numpy()),
        long_prompts=long_prompts(computed, scheduled, decodes),
    )
