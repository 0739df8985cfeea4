"""Routing and experts equal the reference's, for few tokens and many, in shapes of no roundness."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.activations import Activation, ClampedSiLU, ClampedSwiGLU, Gating
from atom.model_ops.backends.backend import Backend
from atom.model_ops.quantised.quantise import quantise
from atom.model_ops.routing import Routed, Routing, Scoring
from atom.model_ops.self_check.agreement import SLACK
from atom.model_ops.values import (
    ExpertsWeight,
    LinearWeight,
    NormWeight,
    RouterWeight,
    Scales,
    Stream,
    WeightFormat,
)
from tests.engine.ops.fp8_experts_answer import fp8_experts_answer
from tests.engine.ops.inputs import assert_rows_agree
from tests.support.kernels.interpreter_choice import is_interpreting

SOFTMAX, SIGMOID = Scoring.SOFTMAX, Scoring.SIGMOID
ROUTINGS = {
    "one": Routing(top_k=1),
    "mixtral": Routing(top_k=2, renormalize=True),
    "qwen": Routing(top_k=5),
    "deepseek-v2": Routing(top_k=3, scale=16.0, groups=4, groups_kept=2),
    "deepseek-v3": Routing(
        top_k=4, scoring=SIGMOID, renormalize=True, scale=2.5, groups=4, groups_kept=2, group_top=2
    ),
    "glm": Routing(top_k=3, scoring=SIGMOID, renormalize=True, group_top=2),
}
FP8 = (WeightFormat.FP8, WeightFormat.FP8_BLOCKS)
gpu = pytest.mark.gpu
# The interpreter multiplies bfloat16 as the integers it is stored in: on GPUs only.
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=gpu)]
# Seconds each in the interpreter, where test_experts_of_few_bits has as many rows an expert.
SLOW_THERE = [pytest.mark.whole] if is_interpreting() else []


def by_expert(routed: Routed, experts: int) -> torch.Tensor:
    """[T, E] weights: the order of a token's experts says nothing."""
    assert int(routed.ids.min()) >= 0
    assert int(routed.ids.max()) < experts
    dense = torch.zeros(len(routed.ids), experts, device=routed.ids.device)
    return dense.scatter_(1, routed.ids.long(), routed.weights)


def router(experts: int, hidden: int, device: torch.device, *, full: bool) -> RouterWeight:
    draw = torch.Generator().manual_seed(1)
    bias = torch.randn(experts, generator=draw).to(device) if full else None
    e_score_correction_bias = torch.rand(experts, generator=draw).to(device) if full else None
    matrix = torch.randn(experts, hidden, generator=draw).to(device) * 0.3
    return RouterWeight(LinearWeight(matrix, bias), e_score_correction_bias)


@pytest.mark.pairs
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
@pytest.mark.parametrize(
    ("tokens", "experts"), [(1, 12), (3, 20), pytest.param(3000, 256, marks=gpu)]
)
def test_route(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, experts: int,
    routing: Routing, full: bool,
) -> None:  # fmt: skip
    x = torch.randn(tokens, 72, device=device)
    w = router(experts, 72, device, full=full)
    expected = by_expert(reference.operations["route"](x, w, routing), experts)
    got = by_expert(backend.operations["route"](x, w, routing), experts)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_many_tokens_are_routed(backend: Backend, reference: Backend, device: torch.device) -> None:
    x, w = torch.randn(66, 40, device=device), router(5, 40, device, full=False)
    expected = by_expert(reference.operations["route"](x, w, ROUTINGS["one"]), 5)
    got = by_expert(backend.operations["route"](x, w, ROUTINGS["one"]), 5)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_scores_are_compared_in_float32(backend: Backend, device: torch.device) -> None:
    """Two experts that half precision could not tell apart."""
    if backend.name == "native_cpu":
        pytest.skip("native_cpu: made for float32")
    x = torch.ones(1, 4096, dtype=torch.float16, device=device)
    matrix = torch.zeros(4, 4096, dtype=torch.float16, device=device)
    matrix[1], matrix[3] = 0.5, 0.5
    matrix[3, 0] = 0.75  # 2048.25 after 2048
    routed = backend.operations["route"](x, RouterWeight(LinearWeight(matrix)), Routing(top_k=1))
    assert routed.ids.tolist() == [[3]]


def weights(
    experts: int, hidden: int, inner: int, device: torch.device, dtype: torch.dtype,
    *, bias: bool = False, activation: Gating = Activation.SILU,
) -> ExpertsWeight:  # fmt: skip
    draw = torch.Generator().manual_seed(2)

    def stack(rows: int, columns: int) -> LinearWeight:
        data = torch.randn(experts, rows, columns, generator=draw) * columns**-0.5
        biases = torch.randn(experts, rows, generator=draw).to(device, dtype) if bias else None
        return LinearWeight(data.to(device, dtype), biases)

    first = 2 * inner if activation.has_gate else inner
    return ExpertsWeight(stack(first, hidden), stack(hidden, inner), activation)


def chosen(tokens: int, experts: int, top_k: int, device: torch.device) -> Routed:
    """More of the first experts than of the others, and of some none."""
    draw = torch.Generator().manual_seed(3)
    liking = torch.rand(tokens, experts, generator=draw) / torch.arange(1, experts + 1)
    ids = liking.topk(top_k, dim=1).indices.to(torch.int32)
    return Routed(ids.to(device), torch.rand(tokens, top_k, generator=draw).to(device))


# By tokens, experts, choices, hidden and inner size: programs of pairs, of experts, and in order.
SHAPES = [
    (1, 3, 1, 48, 40),
    (1, 20, 4, 64, 32),
    (3, 12, 2, 40, 24),
    (70, 5, 3, 48, 40),
    (40, 1, 1, 32, 16),
    (350, 7, 3, 32, 48),
    pytest.param(1, 128, 8, 2048, 768, marks=gpu),
    pytest.param(64, 128, 8, 2048, 768, marks=gpu),
    pytest.param(4100, 128, 8, 2048, 768, marks=gpu),
    pytest.param(700, 32, 4, 2880, 2880, marks=gpu),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "experts", "top_k", "hidden", "inner"), SHAPES)
def test_experts(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, experts: int,
    top_k: int, hidden: int, inner: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    x = torch.randn(tokens, hidden, device=device).to(dtype)
    w = weights(experts, hidden, inner, device, dtype)
    routed = chosen(tokens, experts, top_k, device)
    expected = reference.operations["experts"](x, w, routed)
    got = backend.operations["experts"](x, w, routed)
    assert got.dtype is dtype
    assert_rows_agree(got, expected, dtype, slack=SLACK["experts"])


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "hidden", "inner", "dtype"),
    [
        (1, 20, 4, 40, 24, torch.float32),
        (6, 5, 3, 40, 24, torch.float16),
        (70, 5, 3, 40, 24, torch.float32),
        pytest.param(1, 128, 6, 2688, 1856, torch.bfloat16, marks=gpu),
        pytest.param(64, 128, 6, 2688, 1856, torch.bfloat16, marks=gpu),
        pytest.param(4100, 128, 6, 2688, 1856, torch.bfloat16, marks=gpu),
    ],
)
def test_experts_without_a_gate(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, experts: int,
    top_k: int, hidden: int, inner: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Programs of pairs, of experts, and in order; gpu: of Nemotron 3 Nano's sizes."""
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves this activation to another backend")
    relu2 = Activation.RELU2
    x = torch.randn(tokens, hidden, device=device).to(dtype)
    w = weights(experts, hidden, inner, device, dtype, bias=True, activation=relu2)
    routed = chosen(tokens, experts, top_k, device)
    expected = reference.operations["experts"](x, w, routed)
    assert_rows_agree(
        backend.operations["experts"](x, w, routed), expected, dtype, slack=SLACK["experts"]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 3, 1), (1, 3, 2), (3, 12, 2), (70, 5, 1), (350, 7, 3)]
)
def test_weights_of_inputs(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, experts: int,
    top_k: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    """A weight of what an expert is given is none of what it makes: activations are not linear."""
    x = torch.randn(tokens, 48, device=device).to(dtype)
    w = replace(weights(experts, 48, 40, device, dtype, bias=True), weighs_inputs=True)
    routed = chosen(tokens, experts, top_k, device)
    expected = torch.zeros(tokens, 48, device=device)
    for choice in range(top_k):
        one = Routed(routed.ids[:, choice : choice + 1], torch.ones(tokens, 1, device=device))
        given = x.float() * routed.weights[:, choice : choice + 1]
        plain = replace(
            w,
            weighs_inputs=False,
            gate_up=LinearWeight(w.gate_up.data.float(), w.gate_up.bias.float()),
            down=LinearWeight(w.down.data.float(), w.down.bias.float()),
        )
        expected += reference.operations["experts"](given, plain, one)
    for ops in (reference, backend):
        got = ops.operations["experts"](x, w, routed)
        assert_rows_agree(got, expected.to(dtype), dtype, slack=SLACK["experts"])


@pytest.mark.parametrize("first", [0, 8], ids=["the first rank's", "the last rank's"])
@pytest.mark.parametrize("tokens", [1, 3, 70, 400])
def test_shares_of_experts_by_ranks_add_up(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, first: int
) -> None:
    """Of the 12 experts that tokens choose among, four are here: few pairs, many and in order."""
    x = torch.randn(tokens, 40, device=device)
    all_experts = weights(12, 40, 24, device, torch.float32)
    routed = chosen(tokens, 12, 3, device)
    own = slice(first, first + 4)
    is_own = (routed.ids >= first) & (routed.ids < first + 4)
    only = Routed(routed.ids, torch.where(is_own, routed.weights, 0.0))
    expected = reference.operations["experts"](x, all_experts, only)
    w = ExpertsWeight(
        LinearWeight(all_experts.gate_up.data[own]),
        LinearWeight(all_experts.down.data[own]),
        all_experts.activation,
    )
    share = Routed(routed.ids - first, routed.weights, is_partial=True)
    got = backend.operations["experts"](x, w, share)
    assert_rows_agree(got, expected, torch.float32, 2.0)


@pytest.mark.parametrize(
    "activation",
    [Activation.GELU_TANH, ClampedSwiGLU(1.702, 0.7), ClampedSiLU(0.7)],
    ids=["gelu", "clamped", "clamped silu"],
)
@pytest.mark.parametrize("tokens", [1, 30, 350])
def test_experts_with_biases_and_other_activations(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, activation: Gating
) -> None:
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves these activations to another backend")
    x = torch.randn(tokens, 40, device=device)
    w = weights(6, 40, 24, device, torch.float32, bias=True, activation=activation)
    routed = chosen(tokens, 6, 3, device)
    expected = reference.operations["experts"](x, w, routed)
    assert_rows_agree(backend.operations["experts"](x, w, routed), expected, torch.float32, 2.0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("tokens", [1, 20, 260])
def test_experts_are_added_by_the_next_norm(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, shared: bool
) -> None:
    x, residual = torch.randn(tokens, 48, device=device), torch.randn(tokens, 48, device=device)
    also = torch.randn(tokens, 48, device=device) if shared else None
    w, routed = weights(6, 48, 24, device, torch.float32), chosen(tokens, 6, 2, device)
    norm = NormWeight(torch.ones(48, device=device), 1e-6)
    added = residual + reference.operations["experts"](x, w, routed)
    if also is not None:
        added += also
    stream = backend.operations["add_experts"](Stream(residual.clone()), x, w, routed, also)
    normed, stream = backend.operations["norm"](stream, norm)
    assert_rows_agree(stream.residual, added, torch.float32, 2.0)
    expected, _ = reference.operations["norm"](Stream(added), norm)
    assert_rows_agree(normed, expected, torch.float32, 2.0)


def coded(
    kind: WeightFormat, w: ExpertsWeight, dtype: torch.dtype, *, zeros: bool
) -> ExpertsWeight:
    """The experts in a format of few bits; int4 with scales of 64 inputs."""

    def stack(plain: LinearWeight) -> LinearWeight:
        count, outputs, inputs = plain.data.shape
        if kind is not WeightFormat.INT4:
            block = {WeightFormat.FP8: (1, inputs), WeightFormat.MXFP4: (1, 32)}.get(kind, (64, 64))
            parts = [quantise(each, kind, block) for each in plain.data]
            data, scale = (torch.stack(each) for each in zip(*parts, strict=True))
            return LinearWeight(data, plain.bias, Scales(kind, scale, block, dtype))
        draw, device = torch.Generator().manual_seed(5), plain.data.device
        data = torch.randint(0, 256, (count, outputs, inputs // 2), generator=draw).to(device)
        scale = torch.rand(count, outputs, inputs // 64, generator=draw).to(device) * 0.02 + 0.01
        zero = torch.randint(0, 256, (count, outputs // 2, inputs // 64), generator=draw)
        scales = Scales(kind, scale.half(), (1, 64), dtype)
        scales = replace(scales, zero=zero.to(device, torch.uint8)) if zeros else scales
        return LinearWeight(data.to(torch.uint8), plain.bias, scales)

    return ExpertsWeight(stack(w.gate_up), stack(w.down), w.activation)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "zeros"),
    [
        (WeightFormat.FP8, False),
        (WeightFormat.FP8_BLOCKS, False),
        (WeightFormat.MXFP4, False),
        (WeightFormat.INT4, False),
        (WeightFormat.INT4, True),
    ],
)
@pytest.mark.parametrize(
    ("tokens", "hidden", "inner"),
    [
        (1, 192, 64),
        (30, 64, 192),
        (350, 64, 64),
        pytest.param(1, 2880, 2880, marks=gpu),
        pytest.param(64, 2880, 2880, marks=gpu),
        pytest.param(150, 2880, 2880, marks=gpu),
        pytest.param(2000, 2880, 2880, marks=gpu),
    ],
)
def test_experts_of_few_bits(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, hidden: int,
    inner: int, kind: WeightFormat, zeros: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves quantised experts to another backend")
    x = torch.randn(tokens, hidden, device=device).to(dtype)
    plain = weights(6, hidden, inner, device, dtype, bias=True, activation=ClampedSwiGLU(1.7, 7.0))
    w = coded(kind, plain, dtype, zeros=zeros)
    routed = chosen(tokens, 6, 3, device)
    expected = reference.operations["experts"](x, w, routed)
    in_fp8 = backend.name == "triton" and kind in FP8 and dtype is torch.bfloat16
    slack = 6.0 if in_fp8 else 2.0  # activations are rounded, too (test_experts_of_bfloat16)
    assert_rows_agree(backend.operations["experts"](x, w, routed), expected, dtype, slack=slack)


def assert_all_agree(got: torch.Tensor, expected: torch.Tensor) -> None:
    """All rows as one: in few of them a group's largest activation is rounded to the other side in
    bfloat16, and all of its group's codes with it."""
    assert_rows_agree(got.flatten()[None], expected.flatten()[None], torch.bfloat16)


@pytest.mark.pairs
@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize(
    ("kind", "activation"),
    [(kind, Activation.SILU) for kind in (*FP8, WeightFormat.MXFP4)]
    + [(WeightFormat.MXFP4, ClampedSwiGLU(1.7, 7.0))],
)
@pytest.mark.parametrize(
    ("tokens", "count", "hidden", "inner"),
    [
        (1, 6, 192, 64),
        (6, 6, 64, 96),
        (30, 6, 64, 192),
        pytest.param(360, 12, 64, 64, marks=SLOW_THERE),
        (400, 3, 128, 64),
        pytest.param(64, 32, 2048, 704, marks=gpu),
        pytest.param(4096, 32, 2048, 704, marks=gpu),
    ],
)
def test_experts_of_bfloat16(
    backend: Backend, reference: Backend, device: torch.device, tokens: int, count: int,
    hidden: int, inner: int, kind: WeightFormat, activation: Gating,
) -> None:  # fmt: skip
    """Codes are multiplied with activations in fp8, twice of MXFP4, or taken a word at once."""
    if backend.name == "native_cpu":
        pytest.skip("native_cpu leaves quantised experts to another backend")
    x = torch.randn(tokens, hidden, device=device).bfloat16()
    dtype = torch.bfloat16
    plain = weights(count, hidden, inner, device, dtype, bias=True, activation=activation)
    w = coded(kind, plain, dtype, zeros=False)
    routed = chosen(tokens, count, 3, device)
    prepare = backend.operations["prepare_experts"]
    prepared = replace(w, gate_up=prepare(w.gate_up), down=prepare(w.down))
    got = backend.operations["experts"](x, prepared, routed)
    exact = reference.operations["experts"](x, w, routed)
    if backend.name == "triton" and kind in FP8:
        assert_all_agree(got, fp8_experts_answer(x, w, routed))
        # Of a code's three bits of fraction, twice.
        assert_rows_agree(got, exact, torch.bfloat16, slack=6.0)
    else:
        assert_rows_agree(got, exact, torch.bfloat16, slack=2.0)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize(("hidden", "inner"), [(36, 20), (132, 68)])
def test_experts_of_fp8_whose_sides_no_tile_divides(
    backend: Backend, reference: Backend, device: torch.device, hidden: int, inner: int
) -> None:
    if backend.name != "triton":
        pytest.skip("activations in fp8 are the kernels'")
    x = torch.randn(9, hidden, device=device).bfloat16()
    plain = weights(6, hidden, inner, device, torch.bfloat16, bias=True)
    w, routed = coded(WeightFormat.FP8, plain, torch.bfloat16, zeros=False), chosen(9, 6, 3, device)
    got = backend.operations["experts"](x, w, routed)
    assert_all_agree(got, fp8_experts_answer(x, w, routed))


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("tokens", [9, 150])
@pytest.mark.parametrize("kind", [WeightFormat.PLAIN, WeightFormat.FP8_BLOCKS])
def test_experts_as_amd_cards_multiply_them(
    backend: Backend, reference: Backend, device: torch.device, kind: WeightFormat, tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With their tiles, and gates beside their ups."""
    if backend.name != "triton":
        pytest.skip("tiles are the kernels'")
    x = torch.randn(tokens, 192, device=device).bfloat16()
    w = weights(4, 192, 128, device, torch.bfloat16, bias=True)
    if kind is not WeightFormat.PLAIN:
        w = coded(kind, w, torch.bfloat16, zeros=False)
    routed = chosen(tokens, 4, 3, device)
    exact = reference.operations["experts"](x, w, routed)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    got = backend.operations["experts"](x, w, routed)
    # A code's three bits of fraction, twice.
    assert_rows_agree(got, exact, torch.bfloat16, slack=2.0 if w.down.scales is None else 6.0)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("kind", [WeightFormat.PLAIN, *FP8])
@pytest.mark.parametrize(
    ("tokens", "count", "top_k", "hidden", "inner"),
    [
        (350, 4, 3, 80, 48),  # sides that no tile divides
        (300, 3, 1, 64, 272),  # an expert without pairs
        pytest.param(4100, 128, 8, 2048, 768, marks=gpu),
        pytest.param(700, 16, 4, 2880, 1440, marks=gpu),
    ],
)
def test_tiles_are_copied_by_description_as_they_are_read_by_pointers(
    backend: Backend, device: torch.device, kind: WeightFormat, tokens: int, count: int,
    top_k: int, hidden: int, inner: int,
) -> None:  # fmt: skip
    if backend.name != "triton":
        pytest.skip("tiles are the kernels'")
    from atom.model_ops.backends.triton_ops.moe.grouped_gemm import expert_parts
    from atom.model_ops.backends.triton_ops.moe.grouped_tiles import expert_tile

    x = torch.randn(tokens, hidden, device=device).bfloat16()
    w = weights(count, hidden, inner, device, torch.bfloat16, bias=True)
    if kind is not WeightFormat.PLAIN:
        w = coded(kind, w, torch.bfloat16, zeros=False)
    routed = chosen(tokens, count, top_k, device)
    tile = expert_tile(w.down, tokens * top_k, 2)
    if not tile.by_tma:
        pytest.skip("this card copies nothing by description")
    by_tma = expert_parts(x, w, routed, tile)
    assert torch.equal(by_tma, expert_parts(x, w, routed, replace(tile, by_tma=False)))
