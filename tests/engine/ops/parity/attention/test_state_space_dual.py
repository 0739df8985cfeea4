"""Mamba-2's state space duality: what a row finds, leaves and answers, by every backend."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.linear_attention import SsdTokens, SsdWeight
from atom.model_ops.self_check.agreement import SLACK, STATES_SLACK
from atom.sizing.states import DeltaShape, SsdShape
from atom.utils.forward_context import AttentionMetaData
from tests.engine.ops.inputs import assert_rows_agree
from tests.engine.ops.parity.attention.test_delta_net import delta_case

gpu = pytest.mark.gpu
ODD = SsdShape(key_heads=2, value_heads=4, key_dim=12, value_dim=20, conv_width=3)
ONE_GROUP = SsdShape(key_heads=1, value_heads=3, key_dim=24, value_dim=40, conv_width=4)
GRANITE = SsdShape(key_heads=1, value_heads=48, key_dim=128, value_dim=64, conv_width=4)
NEMOTRON = SsdShape(key_heads=8, value_heads=128, key_dim=128, value_dim=80, conv_width=4)
CASES = [
    (ODD, torch.float32),
    (ONE_GROUP, torch.bfloat16),
    pytest.param(GRANITE, torch.bfloat16, marks=gpu),
    pytest.param(GRANITE, torch.float32, marks=gpu),
    pytest.param(NEMOTRON, torch.bfloat16, marks=gpu),
]
# (history, tokens): two decodes; then rows that begin, and go on for longer than a chunk.
ROWS = [(30, 1), (0, 1), (0, 5), (12, 70)]


@dataclass(frozen=True)
class SsdCase:
    """A step's tokens, and what all slots hold; slots of no row hold NaN."""

    shape: SsdShape
    tokens: SsdTokens
    weight: SsdWeight
    states: torch.Tensor
    step: AttentionMetaData

    def answered(self, backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        """Answers by token, and the states of the rows' slots behind it."""
        states = self.states.clone()
        dual = backend.operations["state_space_dual"]
        out = dual(self.tokens, self.shape, self.weight, states, self.step)
        return out, states[self.step.slots]


def ssd_case(
    rows: list[tuple[int, int]],
    device: torch.device,
    *,
    shape: SsdShape = ODD,
    dtype: torch.dtype = torch.float32,
    num_decodes: int = 2,
) -> SsdCase:
    heads = shape.value_heads
    like = DeltaShape(
        key_heads=shape.key_heads, value_heads=heads, key_dim=shape.key_dim,
        value_dim=shape.value_dim, conv_width=shape.conv_width,
    )  # fmt: skip
    same = delta_case(rows, device, shape=like, dtype=dtype, num_decodes=num_decodes)
    skip = torch.randn(heads, device=device)
    weight = SsdWeight(same.weight.a_log, same.weight.dt_bias, skip)
    tokens = SsdTokens(same.tokens.qkv, same.tokens.a)
    return SsdCase(shape, tokens, weight, same.states, same.step)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_answers_and_states_are_those_of_one_token_after_the_other(
    backend: Backend, reference: Backend, device: torch.device, shape: SsdShape, dtype: torch.dtype
) -> None:
    case = ssd_case(ROWS, device, shape=shape, dtype=dtype)
    out, states = case.answered(backend)
    expected, kept = case.answered(reference)
    assert out.dtype is dtype
    assert_rows_agree(out, expected, dtype, slack=SLACK["state_space_dual"])
    assert_rows_agree(states, kept, torch.float32, slack=STATES_SLACK)


def test_a_state_stands_behind_the_tokens_that_are_kept(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    case = ssd_case([(30, 4), (7, 1), (12, 5)], device, num_decodes=2)
    kept = torch.tensor([2, 1, 5], dtype=torch.int32, device=device)
    drafted = replace(case, step=replace(case.step, num_kept=kept))
    out, states = drafted.answered(backend)
    expected, behind = case.answered(reference)
    assert_rows_agree(out, expected, torch.float32, slack=SLACK["state_space_dual"])
    assert_rows_agree(states[1:], behind[1:], torch.float32, slack=STATES_SLACK)
    first = replace(case.step, query_starts=torch.tensor([0, 2], dtype=torch.int32, device=device))
    first = replace(first, context_lens=case.step.context_lens[:1] - 2, num_decodes=0)
    assert case.step.slots is not None
    first = replace(first, slots=case.step.slots[:1], max_query_len=2)
    tokens = SsdTokens(case.tokens.qkv[:2], case.tokens.steps[:2])
    _, left = replace(case, step=first, tokens=tokens).answered(reference)
    assert_rows_agree(states[:1], left, torch.float32, slack=STATES_SLACK)


def test_chunks_of_a_prompt_are_its_whole(backend: Backend, device: torch.device) -> None:
    """Wherever a prompt is cut, the next chunk goes on where the one before ended."""
    whole = ssd_case([(0, 80)], device, num_decodes=0)
    out, states = whole.answered(backend)
    found, kept = [], whole.states.clone()
    dual = backend.operations["state_space_dual"]
    for first, end in ((0, 37), (37, 38), (38, 80)):
        step = replace(
            whole.step,
            query_starts=torch.tensor([0, end - first], dtype=torch.int32, device=device),
            context_lens=torch.tensor([end], dtype=torch.int32, device=device),
            num_decodes=int(end - first == 1),
            max_query_len=end - first,
        )
        tokens = SsdTokens(whole.tokens.qkv[first:end], whole.tokens.steps[first:end])
        found.append(dual(tokens, whole.shape, whole.weight, kept, step))
    assert_rows_agree(torch.cat(found), out, torch.float32, slack=SLACK["state_space_dual"])
    assert_rows_agree(kept[whole.step.slots], states, torch.float32, slack=STATES_SLACK)


def test_padding_rows_change_no_real_slot(
    backend: Backend, device: torch.device, takes_padding: bool
) -> None:
    if not takes_padding:
        pytest.skip("not made for graphs")
    case = ssd_case([(30, 1), (7, 1), (0, 1), (0, 1)], device, num_decodes=4)
    assert case.step.slots is not None
    slots, contexts = case.step.slots.clone(), case.step.context_lens.clone()
    slots[2:] = torch.tensor([len(case.states) - 1, -1])
    contexts[2:] = 0
    padded = replace(case, step=replace(case.step, slots=slots, context_lens=contexts))
    out, kept = padded.answered(backend)
    expected, left = case.answered(backend)
    assert torch.equal(out[:2], expected[:2])
    assert torch.equal(kept[:2], left[:2])
    assert out.isfinite().all()
