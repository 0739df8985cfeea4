"""The backend of reproducible answers equals the reference; and on a card, whose compiler and units
decide, no bit of a row depends on what else is computed with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.routing import Routing
from atom.model_ops.values import (
    ExpertsWeight,
    LinearWeight,
    NormWeight,
    Pending,
    RouterWeight,
    Stream,
)
from atom.sizing.mask_rule import CAUSAL, MaskKind, MaskRule
from tests.engine.ops.inputs import PagedCase, assert_rows_agree, load_backend, paged_case
from tests.engine.ops.mla_inputs import ODD, REAL, SMALL, latent_case

OWN = "batch_invariant"
WINDOW = MaskRule(MaskKind.SLIDING_WINDOW, 100)
CHUNKS = MaskRule(MaskKind.CHUNKED, 128)
ROWS = [(300, 1), (1, 1), (530, 1), (0, 1), (40, 40), (300, 17), (700, 3)]
gpu = pytest.mark.gpu
BFLOAT16 = pytest.param(torch.bfloat16, marks=gpu)
DTYPES = [torch.float32, BFLOAT16]


@pytest.fixture(scope="module")
def own() -> Backend:
    return load_backend(OWN)


def _matrix(outputs: int, inputs: int, device: torch.device, dtype: torch.dtype) -> LinearWeight:
    draw = torch.Generator().manual_seed(outputs + inputs)
    data = torch.randn(outputs, inputs, generator=draw) * inputs**-0.5
    bias = torch.randn(outputs, generator=draw)
    return LinearWeight(data.to(device, dtype), bias.to(device, dtype))


def _doubled(w: LinearWeight) -> LinearWeight:
    assert w.bias is not None
    return LinearWeight(w.data.double(), w.bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 70, pytest.param(1500, marks=gpu)])
@pytest.mark.parametrize(("outputs", "inner"), [(200, 130), (64, 1000)])
def test_products(
    own: Backend, device: torch.device, dtype: torch.dtype, tokens: int, outputs: int, inner: int
) -> None:
    x, w = (
        torch.randn(tokens, inner, device=device, dtype=dtype),
        _matrix(outputs, inner, device, dtype),
    )
    wide = _doubled(w)
    expected = torch.nn.functional.linear(x.double(), wide.data, wide.bias)
    assert_rows_agree(own.operations["linear"](x, w), expected, dtype)
    parts = own.operations["linear_parts"](x, replace(w, ranks=1))
    assert parts.dtype is torch.float32
    assert_rows_agree(parts.double().sum(0), expected, dtype)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_whole_leaves_of_a_product(
    own: Backend, device: torch.device, ranks: int
) -> None:
    x, w = torch.randn(3, 512, device=device), _matrix(48, 512, device, torch.float32)
    whole = own.operations["linear_parts"](x, replace(w, ranks=1))
    assert len(whole) == 4
    columns = 512 // ranks
    parts = [
        own.operations["linear_parts"](
            x[:, first : first + columns].contiguous(),
            LinearWeight(
                w.data[:, first : first + columns].contiguous(),
                w.bias if first == 0 else None,
                ranks=ranks,
            ),
        )
        for first in range(0, 512, columns)
    ]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pending", ["nothing", "whole", 2, 4])
def test_norms(own: Backend, device: torch.device, dtype: torch.dtype, pending: str | int) -> None:
    norm = NormWeight(torch.randn(300, device=device, dtype=dtype), 1e-6)
    residual = torch.randn(5, 300, device=device, dtype=dtype)
    stream, total = Stream(residual.clone()), residual.double()
    if isinstance(pending, int):
        parts = torch.randn(pending, 5, 300, device=device)
        stream = Stream(residual.clone(), parts, Pending.PARTS)
        total = total + parts.double().sum(0)
    elif pending == "whole":
        whole = torch.randn(5, 300, device=device, dtype=dtype)
        stream, total = stream.plus(whole), total + whole.double()
    normed, settled = own.operations["norm"](stream, norm)
    scale = (total.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    assert_rows_agree(normed, total * scale * norm.weight.double(), dtype)
    assert_rows_agree(settled.residual, total, dtype)
    assert settled.is_settled


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "layer",
    [
        {},
        {"mask": WINDOW},
        {"mask": CHUNKS},
        {"sinks": True, "softcap": 20.0, "heads": (6, 2), "head_dim": 40},
    ],
    ids=["plain", "window", "chunks", "sinks and a soft cap"],
)
def test_attention(
    own: Backend, device: torch.device, dtype: torch.dtype, layer: dict[str, Any]
) -> None:
    case = paged_case(ROWS, device=device, dtype=dtype, **layer)
    out = own.operations["paged_attention"](*case.arguments)
    expected = load_backend("torch_ref").operations["paged_attention"](*case.doubled)
    assert_rows_agree(out, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SMALL, ODD, pytest.param(REAL, marks=gpu)])
def test_latent_attention(
    own: Backend, device: torch.device, dtype: torch.dtype, shape: Any
) -> None:
    case = latent_case(ROWS, device=device, dtype=dtype, shape=shape)
    out = own.operations["mla_attention"](*case.arguments)
    expected = load_backend("torch_ref").operations["mla_attention"](*case.doubled)
    assert_rows_agree(out, expected, dtype, 2.0)


def _experts(
    count: int, hidden: int, inner: int, device: torch.device, dtype: torch.dtype
) -> ExpertsWeight:
    draw = torch.Generator().manual_seed(3)
    gate_up, down = (
        LinearWeight(
            (torch.randn(count, *size, generator=draw) * size[1] ** -0.5).to(device, dtype)
        )
        for size in ((2 * inner, hidden), (hidden, inner))
    )
    return ExpertsWeight(gate_up, down, Activation.SILU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 9, pytest.param(3000, marks=gpu)])
def test_experts(own: Backend, device: torch.device, dtype: torch.dtype, tokens: int) -> None:
    x = torch.randn(tokens, 96, device=device, dtype=dtype)
    router = RouterWeight(LinearWeight(torch.randn(8, 96, device=device, dtype=dtype)))
    routed = own.operations["route"](x, router, Routing(top_k=3, renormalize=True))
    weights = _experts(8, 96, 40, device, dtype)
    out = own.operations["experts"](x, weights, routed)
    wide = ExpertsWeight(
        LinearWeight(weights.gate_up.data.double()),
        LinearWeight(weights.down.data.double()),
        Activation.SILU,
    )
    expected = load_backend("torch_ref").operations["experts"](x.double(), wide, routed)
    assert_rows_agree(out, expected, dtype, 2.0)
    chosen = (x.double() @ router.matrix.data.double().T).topk(3, dim=1)
    assert torch.equal(routed.ids.sort(1).values, chosen.indices.sort(1).values.to(torch.int32))
    expected_weights = chosen.values.softmax(dim=1)
    assert_rows_agree(routed.weights, expected_weights, dtype)


# ---- no bit depends on the others: on a card alone, since the interpreter's products are a CPU's


SIZES = [1, 2, 16, 17, 64, 65, 129, 512, 1023, 1024, 1500, 4096]
bits = pytest.mark.parametrize("dtype", [BFLOAT16])


@gpu
@bits
@pytest.mark.parametrize("ranks", [None, 1])
@pytest.mark.parametrize(("outputs", "inner"), [(4096, 4096), (1000, 1408), (152, 12288)])
def test_a_row_of_a_product_is_the_same_in_any_number(
    own: Backend,
    device: torch.device,
    dtype: torch.dtype,
    outputs: int,
    inner: int,
    ranks: int | None,
) -> None:
    x, w = (
        torch.randn(SIZES[-1], inner, device=device, dtype=dtype),
        _matrix(outputs, inner, device, dtype),
    )
    w = own.operations["prepare_linear"](replace(w, ranks=ranks))
    whole = own.operations["linear"](x, w)
    for size in SIZES:
        first = (SIZES[-1] - size) // 2
        part = own.operations["linear"](x[first : first + size], w)
        assert torch.equal(part, whole[first : first + size]), f"{size} rows"
    w = own.operations["prepare_linear"](replace(w, bias=None))
    parts = own.operations["linear_parts"](x, w)
    tree = (parts[0] + parts[1]) + (parts[2] + parts[3]) if len(parts) == 4 else parts[0]
    assert torch.equal(tree.to(dtype), own.operations["linear"](x, w))


@gpu
@bits
@pytest.mark.parametrize("hidden", [64, 2048, 4096, 7168])
def test_a_row_of_a_norm_is_the_same_in_any_number(
    own: Backend, device: torch.device, dtype: torch.dtype, hidden: int
) -> None:
    norm = NormWeight(torch.randn(hidden, device=device, dtype=dtype), 1e-6)
    x = torch.randn(SIZES[-1], hidden, device=device, dtype=dtype)
    whole = own.operations["rms_norm"](x, norm)
    for size in SIZES:
        assert torch.equal(own.operations["rms_norm"](x[-size:], norm), whole[-size:])


def _cut(case: PagedCase, pieces: Sequence[tuple[int, int]]) -> PagedCase:
    """The last row's queries in pieces of (first query, queries), each behind what was before: a
    step whose rows are those pieces alone, decodes where there is one query."""
    step, device = case.step, case.q.device
    context = int(step.context_lens[-1])
    first_query, end = step.query_starts[-2:].tolist()
    queries = end - first_query
    counts = [count for _, count in pieces]
    starts = torch.tensor([0, *counts], device=device).cumsum(0).to(torch.int32)
    contexts = [context - queries + first + count for first, count in pieces]
    return replace(
        case,
        q=torch.cat([case.q[first_query + first : first_query + first + count]
                     for first, count in pieces]),
        step=replace(
            step,
            query_starts=starts,
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=step.block_tables[-1:].expand(len(pieces), -1).contiguous(),
            num_decodes=len(pieces) if set(counts) == {1} else 0,
            max_query_len=max(counts),
            max_context_len=context,
        ),
    )  # fmt: skip


@gpu
@bits
@pytest.mark.parametrize(
    "layer",
    [
        {"heads": (32, 8), "head_dim": 128},
        {"heads": (32, 4), "head_dim": 128, "mask": WINDOW},
        {"heads": (12, 2), "head_dim": 80, "mask": CHUNKS},
        {"heads": (64, 8), "head_dim": 64, "sinks": True, "softcap": 20.0, "mask": WINDOW},
        {"heads": (8, 4), "head_dim": 256},
    ],
    ids=["llama", "window", "chunks", "gpt-oss", "gemma"],
)
@pytest.mark.parametrize("context", [700, 9000])
def test_a_query_attends_alike_however_its_row_is_cut(
    own: Backend, device: torch.device, dtype: torch.dtype, layer: dict[str, Any], context: int
) -> None:
    attend = own.operations["paged_attention"]
    layer = {"mask": CAUSAL, **layer}
    queries = 600 if layer["mask"] == CAUSAL else 90
    case = paged_case([(200, 7), (context, queries)], device=device, dtype=dtype, **layer)
    expected = attend(*_cut(case, [(0, queries)]).arguments)
    for pieces in (
        [(0, 1), (1, 30), (31, queries - 31)],
        [(0, 64), (64, queries - 64)],
        [(first, 5) for first in range(0, queries - 5, 5)],
    ):
        out = attend(*_cut(case, pieces).arguments)
        done = sum(count for _, count in pieces)
        assert torch.equal(out, expected[:done]), pieces
    for count in (1, 3, 40, 90):
        decodes = [(queries - 1 - number, 1) for number in range(count)]
        out = attend(*_cut(case, decodes).arguments)
        assert torch.equal(out, expected[-count:].flip(0)), f"{count} decodes"


@gpu
@bits
def test_a_latent_query_attends_alike_however_its_row_is_cut(
    own: Backend, device: torch.device, dtype: torch.dtype
) -> None:
    attend, queries = own.operations["mla_attention"], 600
    case = latent_case([(3000, queries)], device=device, dtype=dtype, shape=REAL)
    tokens, shape, up, cache, step = case.arguments
    expected = attend(tokens, shape, up, cache, step)

    def cut(pieces: Sequence[tuple[int, int]]) -> torch.Tensor:
        counts = [count for _, count in pieces]
        contexts = [3000 - queries + first + count for first, count in pieces]
        own_step = replace(
            step,
            query_starts=torch.tensor([0, *counts], device=device).cumsum(0).to(torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=step.block_tables.expand(len(pieces), -1).contiguous(),
            num_decodes=len(pieces) if set(counts) == {1} else 0,
        )
        at = torch.cat([torch.arange(first, first + count) for first, count in pieces]).to(device)
        own_tokens = replace(tokens, q=tokens.q[at], entries=tokens.entries[at])
        result: torch.Tensor = attend(own_tokens, shape, up, cache, own_step)
        return result

    assert torch.equal(cut([(0, 1), (1, 30), (31, queries - 31)]), expected)
    for count in (1, 3, 40, 300):
        decodes = [(queries - 1 - number, 1) for number in range(count)]
        assert torch.equal(cut(decodes), expected[-count:].flip(0)), f"{count} decodes"


@gpu
@bits
def test_a_token_has_the_same_experts_and_sum_in_any_number(
    own: Backend, device: torch.device, dtype: torch.dtype
) -> None:
    x = torch.randn(SIZES[-1], 2048, device=device, dtype=dtype)
    router = RouterWeight(_matrix(64, 2048, device, dtype))
    weights = _experts(64, 2048, 768, device, dtype)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        routed = own.operations["route"](x, router, Routing(top_k=8, renormalize=True))
        return routed.ids, routed.weights, own.operations["experts"](x, weights, routed)

    whole = run(x)
    for size in SIZES:
        for part, all_ in zip(run(x[-size:]), whole, strict=True):
            assert torch.equal(part, all_[-size:]), f"{size} tokens"
