"""A fused operation equals the single ones it stands for, composed over the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_names import FUSED_OPS, OPS
from atom.model_ops.self_check.agreement import SLACK, TOLERANCE
from atom.model_ops.values import AttentionShape, LinearWeight, NormWeight, Rotary, Stream
from atom.sizing.mask_rule import sliding_window
from atom.utils import long_chunks
from atom.utils.forward_context import AttentionMetaData, EqualPrompts, LongChunk, PromptPlan
from atom.utils.row_groups import are_even, long_prompts
from tests.engine.ops.inputs import FLOAT32, assert_rows_agree, in_runs, paged_case

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]


def test_the_backend_provides_every_operation(backend: Backend) -> None:
    """One that it left to the reference would keep every step out of its graphs; those of indexers
    are asked for by models that have one, whose steps are not captured."""
    asked = {op for op in OPS if FLOAT32.asks_for(op)}
    assert asked | set(FUSED_OPS) <= set(backend.operations)


@pytest.fixture
def fused(backend: Backend) -> Backend:
    assert set(FUSED_OPS) <= set(backend.operations)
    return backend


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "outputs", "inner"), [(1, 64, 128), (5, 16, 64), (20, 64, 512)])
def test_products_alone(
    fused: Backend, reference: Backend, device: torch.device, tokens: int, outputs: int,
    inner: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    draw = partial(torch.randn, device=device)
    x = draw(tokens, inner).to(dtype)
    w = LinearWeight((draw(outputs, inner) / inner**0.5).to(dtype))
    exact = LinearWeight(w.data.double())
    parts = fused.operations["linear_parts"](x, w)
    product = reference.operations["linear"](x.double(), exact)
    whole = parts.sum(0) if parts.dim() == 3 else parts
    assert_rows_agree(whole, product, dtype, slack=SLACK["linear_parts"])
    gated = fused.operations["gated_linear"](x, w, Activation.SILU)
    expected = composed(reference, "gated_linear")(x.double(), exact, Activation.SILU)
    assert_rows_agree(gated, expected, dtype, slack=SLACK["gated_linear"])


def composed(reference: Backend, op: str) -> Any:
    ops = cast(Ops, SimpleNamespace(**reference.operations))
    return getattr(ComposedOps(ops), op)


@pytest.mark.pairs
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
    addend = None if begins else draw(tokens, inner).to(dtype)
    norm = NormWeight(draw(inner).to(dtype), 1e-6)
    weight = (draw(outputs, inner) / inner**0.5).to(dtype)
    offset = draw(outputs).to(dtype) if bias else None
    activation = (Activation.SILU,) if op == "norm_gated_linear" else ()
    # In double: what the dtype's roundings do to the reference itself is no yardstick.
    expected, _ = composed(reference, op)(
        stream_of(x.double(), None if addend is None else addend.double()),
        NormWeight(norm.weight.double(), norm.eps),
        LinearWeight(weight.double(), None if offset is None else offset.double()),
        *activation,
    )
    out, after = fused.operations[op](
        stream_of(x.clone(), None if addend is None else addend.clone()), norm,
        LinearWeight(weight, offset), *activation,
    )  # fmt: skip
    assert after.is_settled
    assert torch.equal(after.residual, x if addend is None else x + addend)
    # Gate, activation, up and their product are rounded one after the other, and one of ten
    # outputs may be most of the row.
    assert_rows_agree(out, expected, dtype, slack=2.0)


def stream_of(residual: torch.Tensor, pending: torch.Tensor | None) -> Stream:
    return Stream(residual) if pending is None else Stream(residual).plus(pending)


@pytest.mark.gpu
@pytest.mark.parametrize("inner", [1024, 4096, 5120])
@pytest.mark.parametrize("op", ["norm_linear", "norm_gated_linear"])
def test_norm_and_product_of_real_shapes(
    fused: Backend, reference: Backend, device: torch.device, op: str, inner: int
) -> None:
    x, residual = (torch.randn(1, inner, device=device).bfloat16() for _ in range(2))
    norm = NormWeight(torch.randn(inner, device=device).bfloat16(), 1e-6)
    w = LinearWeight((torch.randn(6144, inner, device=device) / inner**0.5).bfloat16())
    args = (norm, w, Activation.SILU) if op == "norm_gated_linear" else (norm, w)
    expected, settled = composed(reference, op)(stream_of(residual.clone(), x.clone()), *args)
    out, after = fused.operations[op](stream_of(residual.clone(), x.clone()), *args)
    assert torch.equal(after.residual, settled.residual)
    assert_rows_agree(out, expected, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [2, 17, pytest.param(64, marks=gpu), 2048])
@pytest.mark.parametrize(("outputs", "inner"), [(64, 128), pytest.param(1024, 3072, marks=gpu)])
def test_what_is_added_and_the_norm_that_settles_it(
    fused: Backend, reference: Backend, device: torch.device, outputs: int, inner: int,
    tokens: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, inner, device=device).to(dtype)
    weight = (torch.randn(outputs, inner, device=device) / inner**0.5).to(dtype)
    residual, norm = (torch.randn(n, outputs, device=device).to(dtype) for n in (tokens, 1))
    product = reference.operations["linear"](x.double(), LinearWeight(weight.double()))
    expected, settled = reference.operations["norm"](
        Stream(residual.double()).plus(product), NormWeight(norm[0].double(), 1e-6)
    )
    stream = fused.operations["add"](Stream(residual.clone()), x, LinearWeight(weight))
    out, after = fused.operations["norm"](stream, NormWeight(norm[0], 1e-6))
    for got, want in ((out, expected), (after.residual, settled.residual)):
        assert got.dtype == dtype
        assert_rows_agree(got, want, dtype)


DECODES = [(1, 1), (100, 1), (33, 1), (64, 1)]
CHUNKS = [(40, 40), (33, 2), (90, 17)]
PROMPTS = [(7, 7), (2048, 2048), (2048, 2048), (30, 30)]
ODD_PROMPTS = [(7, 7), (4133, 4133), (30, 30)]


@pytest.mark.pairs
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "heads", "head_dim", "max_context", "window"),
    [
        (DECODES, (4, 2), 32, None, None),
        (DECODES, (7, 1), 16, 4096, None),
        (DECODES + CHUNKS, (4, 2), 32, None, None),
        (CHUNKS, (4, 4), 16, None, None),
        (DECODES + CHUNKS, (4, 2), 40, None, 30),
        (DECODES, (3, 3), 24, 4096, 50),
        pytest.param(DECODES + PROMPTS, (16, 8), 128, None, None, marks=gpu),
        pytest.param(DECODES + ODD_PROMPTS, (16, 8), 64, None, None, marks=gpu),
        pytest.param(DECODES + PROMPTS, (16, 8), 96, None, 1024, marks=gpu),
        pytest.param(DECODES + ODD_PROMPTS, (16, 8), 256, None, 4096, marks=gpu),
        pytest.param(
            [(1 + 97 * i % 2500, 1) for i in range(70)], (32, 8), 128, 4096, None, marks=gpu
        ),
        pytest.param(
            [(1 + 97 * i % 2500, 1) for i in range(70)], (32, 8), 112, 4096, 600, marks=gpu
        ),
    ],
)
def test_attention_from_the_projection(
    fused: Backend, reference: Backend, device: torch.device, rows: list[tuple[int, int]],
    heads: tuple[int, int], head_dim: int, max_context: int | None, window: int | None,
    norm: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    case = paged_case(
        rows, device=device, dtype=dtype, heads=heads, head_dim=head_dim, max_context=max_context,
        mask=sliding_window(window),
    )  # fmt: skip
    contexts = torch.tensor([context for context, _ in rows])
    counts = torch.tensor([queries for _, queries in rows])
    qkv = torch.randn(int(counts.sum()), (heads[0] + 2 * heads[1]) * head_dim, device=device)
    qkv = qkv.to(dtype)
    norms = [
        NormWeight(torch.randn(head_dim, device=device).to(dtype), 1e-6) if norm else None
        for _ in range(2)
    ]
    longest = int(contexts.max())
    angles = torch.rand(longest, head_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions, step = place(case.step, contexts, counts)
    rotary = Rotary(cos_sin, positions, *norms)
    cache, twin = case.clean_cache(dtype), case.clean_cache(dtype)
    expected = composed(reference, "attention")(qkv.clone(), case.shape, rotary, twin, step)
    out = fused.operations["attention"](qkv.clone(), case.shape, rotary, cache, step)
    # Both sides round what they rotate, and a key's error weighs more the larger its score: of
    # thousands of rows the worst of the reference's own is off by three limits from float64.
    assert_rows_agree(out, expected, dtype, slack=SLACK["attention"])
    # The reference rotates in the dtype, with cosines rounded to it: two roundings more.
    torch.testing.assert_close(cache.k.float(), twin.k.float(), rtol=0, atol=12 * TOLERANCE[dtype])
    assert torch.equal(cache.v, twin.v)


@pytest.mark.parametrize("captured", [False, True])
def test_rows_of_one_sequence_see_what_the_others_store(
    fused: Backend, reference: Backend, device: torch.device, captured: bool
) -> None:
    """The newest comes first, so that it cannot have seen what the others store on their way."""
    case = in_runs(
        paged_case([(70, 4), (33, 1)], device=device, dtype=torch.float32, max_context=256),
        longest=4, newest_first=True,
    )  # fmt: skip
    contexts, counts = case.step.context_lens.cpu().long(), torch.ones(5, dtype=torch.int64)
    qkv = torch.randn(5, 8 * 32, device=device)
    cos_sin = torch.randn(70, 32, device=device)
    positions, step = place(case.step, contexts, counts)
    runs, longest = case.step.runs, 256 if captured else 70
    step = replace(step, runs=runs, max_context_len=longest)
    arguments = case.shape, Rotary(cos_sin, positions)
    cache, twin = case.clean_cache(torch.float32), case.clean_cache(torch.float32)
    expected = composed(reference, "attention")(qkv.clone(), *arguments, twin, step)
    out = fused.operations["attention"](qkv.clone(), *arguments, cache, step)
    assert_rows_agree(out, expected, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_whose_leading_part_is_dense_before_a_chunk_in_pieces(
    fused: Backend, reference: Backend, device: torch.device, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the prompt, 16 tokens behind the leading ones are in a tile, too, and ten behind these."""
    monkeypatch.setattr(long_chunks, "_LENGTHS", (32, 16))
    monkeypatch.setattr(long_chunks, "_LEAST_SEEN_BY_REST", 0)
    rows = [(33, 1), (40, 40), (90, 90), (50, 40), (50, 2)]
    case = paged_case(rows, device=device, dtype=dtype, heads=(4, 2), head_dim=32)
    contexts, counts = torch.tensor(rows).T
    qkv = torch.randn(int(counts.sum()), 8 * 32, device=device).to(dtype)
    cos_sin = torch.randn(90, 32, device=device)
    positions, step = place(case.step, contexts, counts)
    step = replace(
        step,
        prompts=PromptPlan(
            equal=(EqualPrompts(2, 1, 41, 90, leading=64),),
            chunks=(LongChunk(3, 131, 40, head=6, history=(16,), tiles=(16, 16)),),
        ),
    )
    rotary = Rotary(cos_sin, positions)
    shape = AttentionShape(4, 2, 32, 32**-0.5)
    expected = composed(reference, "attention")(
        qkv.clone(), shape, rotary, case.clean_cache(dtype), step
    )
    out = fused.operations["attention"](qkv.clone(), shape, rotary, case.clean_cache(dtype), step)
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
        prompts=PromptPlan(
            equal=long_prompts(computed, scheduled, decodes),
            chunks=long_chunks.long_chunks(computed, scheduled, decodes),
        ),
    )
