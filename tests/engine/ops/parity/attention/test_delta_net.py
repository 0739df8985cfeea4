"""Layers that keep a state: what a row finds, leaves and answers, by every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from atom.model_ops.backends.backend import Backend
from atom.model_ops.linear_attention import (
    ConvWeight,
    DeltaNetWeight,
    DeltaSlots,
    DeltaTokens,
    DeltaWeight,
)
from atom.model_ops.self_check.agreement import SLACK, STATES_SLACK
from atom.model_ops.values import NormWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData
from tests.engine.ops.inputs import assert_rows_agree, load_backend

gpu = pytest.mark.gpu
SMALL = DeltaShape(key_heads=2, value_heads=4, key_dim=16, value_dim=16, conv_width=4)
ODD = DeltaShape(key_heads=3, value_heads=9, key_dim=12, value_dim=20, conv_width=3)
BY_CHANNEL = DeltaShape(
    key_heads=2, value_heads=2, key_dim=72, value_dim=40, conv_width=3, channel_gates=True
)
KIMI = DeltaShape(
    key_heads=32, value_heads=32, key_dim=128, value_dim=128, conv_width=4, channel_gates=True
)
PUBLISHED = DeltaShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_width=4)
# (history, tokens): decodes first; then rows that begin, go on, are short and longer than a chunk.
ROWS = [(30, 1), (7, 1), (1, 1), (0, 1), (0, 5), (12, 70), (3, 2), (0, 130), (64, 64)]
DECODES = 3


@dataclass(frozen=True)
class DeltaCase:
    """A step's tokens, and what all slots hold; slots of no row hold NaN."""

    shape: DeltaShape
    x: torch.Tensor
    conv: ConvWeight
    tokens: DeltaTokens
    weight: DeltaWeight
    states: torch.Tensor
    tails: torch.Tensor
    step: AttentionMetaData

    def convolved(self, backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs by token, and the tails of the rows' slots behind it."""
        tails = self.tails.clone()
        out = backend.operations["short_convolution"](self.x, self.conv, tails, self.step)
        return out, tails[self.step.slots]

    def answered(self, backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        """Answers by token, and the states of the rows' slots behind it."""
        states = self.states.clone()
        rule = backend.operations["gated_delta_rule"]
        out = rule(self.tokens, self.shape, self.weight, states, self.step)
        return out, states[self.step.slots]

    def netted(self, backend: Backend) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What a whole net makes of the tokens, and its states and tails behind it."""
        shape, dtype, device = self.shape, self.x.dtype, self.x.device
        draw = torch.Generator().manual_seed(1)

        def drawn(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=draw).to(device, dtype)

        kept = DeltaSlots(shape, self.states.clone(), self.tails.clone())
        wide = drawn(len(self.x), shape.value_heads * shape.value_dim + 8)
        norm = NormWeight(drawn(shape.value_dim), 1e-6)
        out = backend.operations["gated_delta_net"](
            replace(self.tokens, qkv=self.x), wide[:, 8:],
            DeltaNetWeight(self.conv.taps, self.weight, norm), kept, self.step,
        )  # fmt: skip
        slots = self.step.slots
        return out, kept.states[slots], kept.tails[slots]


def delta_case(
    rows: Sequence[tuple[int, int]],
    device: torch.device,
    *,
    shape: DeltaShape = SMALL,
    dtype: torch.dtype = torch.float32,
    num_decodes: int = DECODES,
) -> DeltaCase:
    counts = torch.tensor([count for _, count in rows])
    total, num_slots = int(counts.sum()), len(rows) + 3
    slots = torch.randperm(num_slots - 1)[: len(rows)]
    states = torch.full((num_slots, shape.value_heads, shape.key_dim, shape.value_dim), torch.nan)
    tails = torch.full((num_slots, shape.conv_channels, shape.conv_width - 1), torch.nan)
    goes_on = torch.tensor([history > 0 for history, _ in rows])
    own = slots[goes_on]
    states[own], tails[own] = torch.randn_like(states[own]), torch.randn_like(tails[own])
    for slot, (history, _) in zip(slots.tolist(), rows, strict=True):
        if 0 < history < shape.conv_width - 1:  # before a row's first token there was nothing
            tails[slot, :, :-history] = 0.0
    step = AttentionMetaData(
        query_starts=torch.cat((torch.zeros(1), counts.cumsum(0))).to(device, torch.int32),
        context_lens=torch.tensor([sum(row) for row in rows], dtype=torch.int32, device=device),
        block_tables=torch.zeros(len(rows), 1, dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(total, dtype=torch.int64, device=device),
        num_decodes=num_decodes,
        max_query_len=int(counts.max()),
        max_context_len=max(sum(row) for row in rows),
        slots=slots.to(device),
    )

    def of_tokens(width: int) -> torch.Tensor:
        return torch.randn(total, width).to(device, dtype)

    gates = of_tokens(2 * shape.value_heads)
    b, a = gates.chunk(2, dim=1)  # parts of a wider tensor, as in a layer
    channels: tuple[int, ...] = (shape.value_heads,)
    if shape.channel_gates:
        channels = (shape.value_heads, shape.key_dim)
        a = of_tokens(shape.value_heads * shape.key_dim).unflatten(1, channels)
    return DeltaCase(
        shape,
        of_tokens(shape.conv_channels + 8)[:, : shape.conv_channels],
        ConvWeight(torch.randn(shape.conv_channels, shape.conv_width).to(device, dtype)),
        DeltaTokens(of_tokens(shape.conv_channels), b, a),
        DeltaWeight(
            torch.rand(shape.value_heads, device=device).log(),
            torch.randn(channels, device=device),
        ),
        states.to(device),
        tails.to(device),
        step,
    )


CASES_BY_CHANNEL = [
    (BY_CHANNEL, torch.float32),
    (BY_CHANNEL, torch.bfloat16),
    pytest.param(KIMI, torch.bfloat16, marks=gpu),
    pytest.param(KIMI, torch.float32, marks=gpu),
]
SHAPES = [SMALL, ODD, pytest.param(PUBLISHED, marks=gpu)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_see_what_their_rows_had(
    backend: Backend, reference: Backend, device: torch.device, shape: DeltaShape,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = delta_case(ROWS, device, shape=shape, dtype=dtype)
    out, tails = case.convolved(backend)
    expected, kept = case.convolved(reference)
    assert out.dtype is dtype
    assert_rows_agree(out, expected, dtype)
    assert torch.equal(tails, kept)


@pytest.mark.parametrize("has_silu", [False, True])
def test_convolutions_may_have_a_bias_and_no_silu(
    backend: Backend, reference: Backend, device: torch.device, has_silu: bool
) -> None:
    case = delta_case(ROWS, device, shape=ODD)
    plain = replace(case, conv=replace(case.conv, has_silu=False))
    bias = torch.randn(len(case.conv.taps), device=device)
    both = replace(case, conv=ConvWeight(case.conv.taps, bias, has_silu))
    expected = plain.convolved(reference)[0] + bias
    out, _ = both.convolved(backend)
    assert_rows_agree(out, F.silu(expected) if has_silu else expected, torch.float32)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_and_states_are_those_of_one_token_after_the_other(
    backend: Backend, reference: Backend, device: torch.device, shape: DeltaShape,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    case = delta_case(ROWS, device, shape=shape, dtype=dtype)
    out, states = case.answered(backend)
    expected, kept = case.answered(reference)
    assert out.dtype is dtype
    assert_rows_agree(out, expected, dtype, slack=SLACK["gated_delta_rule"])
    assert_rows_agree(states, kept, torch.float32, slack=STATES_SLACK)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize(("shape", "dtype"), CASES_BY_CHANNEL)
def test_channels_that_forget_by_themselves_do_so_in_chunks_too(
    backend: Backend, reference: Backend, device: torch.device, shape: DeltaShape,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    rows = [(30, 1), (0, 1), (0, 5), (12, 70)]
    case = delta_case(rows, device, shape=shape, dtype=dtype, num_decodes=2)
    out, states = case.answered(backend)
    expected, kept = case.answered(reference)
    assert out.dtype is dtype
    assert_rows_agree(out, expected, dtype, slack=SLACK["gated_delta_rule"])
    assert_rows_agree(states, kept, torch.float32, slack=STATES_SLACK)


def test_channels_that_forget_at_once_take_none_with_them(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    """What is left of a channel is no divisor of what is left of it later: of every third nothing
    is left by the next token, of the others all."""
    case = delta_case([(0, 66)], device, shape=BY_CHANNEL, num_decodes=0)
    case.tokens.a.fill_(-30.0)
    case.tokens.a[:, :, ::3] = 300.0
    out, states = case.answered(backend)
    expected, kept = case.answered(reference)
    assert_rows_agree(out, expected, torch.float32, slack=SLACK["gated_delta_rule"])
    assert_rows_agree(states, kept, torch.float32, slack=STATES_SLACK)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [ROWS[:4], ROWS[2:6]], ids=["decodes", "mixed"])
def test_a_net_is_its_parts(
    backend: Backend, composed: Backend, device: torch.device, shape: DeltaShape,
    dtype: torch.dtype, rows: list[tuple[int, int]],
) -> None:  # fmt: skip
    decodes = 4 if rows == ROWS[:4] else 1
    case = delta_case(rows, device, shape=shape, dtype=dtype, num_decodes=decodes)
    out, states, tails = case.netted(backend)
    expected, kept_states, kept_tails = case.netted(composed)
    assert out.dtype is dtype
    assert_rows_agree(out, expected, dtype, slack=SLACK["gated_delta_rule"])
    if dtype is torch.float32:  # in between the parts round to bfloat16
        assert_rows_agree(states, kept_states, dtype, slack=STATES_SLACK)
    assert torch.equal(tails, kept_tails)


def test_a_state_stands_behind_the_tokens_that_are_kept(
    backend: Backend, composed: Backend, device: torch.device
) -> None:
    """Rows that decode have drafts behind those; a prompt beside them is kept whole."""
    rows = [(30, 3), (1, 2), (12, 5)]
    kept, decodes = [2, 1, 5], 2
    case = delta_case(rows, device, shape=ODD, num_decodes=decodes)
    num_kept = torch.tensor(kept, dtype=torch.int32, device=device)
    drafted = replace(case, step=replace(case.step, num_kept=num_kept))
    out, states, tails = drafted.netted(backend)
    whole = replace(case, step=replace(case.step, num_decodes=0))
    assert_rows_agree(
        out, whole.netted(composed)[0], torch.float32, slack=SLACK["gated_delta_rule"]
    )
    _, expected, kept_tails = of_first_tokens(case, kept).netted(composed)
    assert_rows_agree(states, expected, torch.float32, slack=STATES_SLACK)
    assert torch.equal(tails, kept_tails)


def of_first_tokens(case: DeltaCase, kept: Sequence[int]) -> DeltaCase:
    """Take the step of a case's rows without what is behind so many tokens of each."""
    starts = case.step.query_starts.tolist()
    counts = torch.tensor(kept, device=case.x.device)
    own = torch.cat(
        [torch.arange(start, start + count) for start, count in zip(starts, kept, strict=False)]
    ).to(case.x.device)
    scheduled = case.step.query_starts.diff()
    step = replace(
        case.step,
        query_starts=F.pad(counts.cumsum(0), (1, 0)).int(),
        context_lens=(case.step.context_lens - scheduled + counts).int(),
        num_decodes=0,
    )
    tokens = DeltaTokens(*(part[own] for part in (case.tokens.qkv, case.tokens.b, case.tokens.a)))
    return replace(case, x=case.x[own], tokens=tokens, step=step)


def test_a_triangle_is_solved_as_in_order(backend: Backend, device: torch.device) -> None:
    """Equal keys that are learnt in full and never forgotten: powers of their system are sums of
    binomial coefficients, which would take each other away."""
    case = delta_case([(0, 64)], device, num_decodes=0)
    case.tokens.qkv.copy_(case.tokens.qkv[:1].expand_as(case.tokens.qkv))
    case.tokens.b.fill_(9.0)
    case.tokens.a.fill_(-30.0)
    out, _ = case.answered(backend)
    reference, _ = case.answered(load_backend("torch_ref"))
    assert_rows_agree(out, reference, torch.float32, slack=SLACK["gated_delta_rule"])


def test_chunks_of_a_prompt_are_its_whole(backend: Backend, device: torch.device) -> None:
    """Wherever a prompt is cut, the next chunk goes on where the one before ended."""
    whole = delta_case([(0, 100)], device, num_decodes=0)
    out, states = whole.answered(backend)
    found, kept = [], whole.states.clone()
    rule = backend.operations["gated_delta_rule"]
    for first, end in ((0, 37), (37, 38), (38, 100)):
        parts = (part[first:end] for part in (whole.tokens.qkv, whole.tokens.b, whole.tokens.a))
        step = replace(
            whole.step,
            query_starts=torch.tensor([0, end - first], dtype=torch.int32, device=device),
            context_lens=torch.tensor([end], dtype=torch.int32, device=device),
            num_decodes=int(end - first == 1),
            max_query_len=end - first,
        )
        found.append(rule(DeltaTokens(*parts), whole.shape, whole.weight, kept, step))
    assert_rows_agree(torch.cat(found), out, torch.float32, slack=SLACK["gated_delta_rule"])
    assert_rows_agree(kept[whole.step.slots], states, torch.float32, slack=STATES_SLACK)


def test_padding_rows_change_no_real_slot(
    backend: Backend, device: torch.device, takes_padding: bool
) -> None:
    if not takes_padding:
        pytest.skip("not made for graphs")
    case = delta_case([(30, 1), (7, 1), (0, 1), (0, 1)], device, num_decodes=4)
    assert case.step.slots is not None
    slots = case.step.slots.clone()
    slots[2:] = torch.tensor([len(case.states) - 1, -1])
    contexts = case.step.context_lens.clone()
    contexts[2:] = 0
    padded = replace(case, step=replace(case.step, slots=slots, context_lens=contexts))
    for run in (DeltaCase.convolved, DeltaCase.answered):
        out, kept = run(padded, backend)
        expected, left = run(case, backend)
        assert torch.equal(out[:2], expected[:2])
        assert torch.equal(kept[:2], left[:2])
        assert out.isfinite().all()
