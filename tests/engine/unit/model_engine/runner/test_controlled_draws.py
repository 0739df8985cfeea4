"""Draws under each control follow the distribution that its definition gives, worked out here.

From a request's own parameters to its tokens: a row of made-up logits, one slot, many positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atom.model_engine.batch import NewRow
from atom.model_engine.runner.slots.sampling_state import SamplingState
from atom.model_engine.runner.slots.slot_columns import SlotState, TableSize
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.sampling.sampler import Sampler
from atom.sampling_params import SamplingParams
from tests.engine.ops.inputs import FLOAT32

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
VOCAB = len(LOGITS)
CPU = torch.device("cpu")
EOS = 1
PROMPT, ANSWER = [0, 4], [1, 3, 1, 2]
FIRST = len(PROMPT) + len(ANSWER)
DRAWS = 50_000
NEVER = -torch.inf


def drawn(backend: str, **params: Any) -> torch.Tensor:
    """Tokens of a sequence that stands behind PROMPT and ANSWER, as if at many positions."""
    columns = SlotState(1, VOCAB, TableSize(num_groups=1, max_blocks=1), CPU)
    state = SamplingState(columns, VOCAB, [EOS], CPU)
    row = NewRow(
        slot=0, request_id=7, token_ids=np.array(PROMPT + ANSWER, dtype=np.int32),
        num_prompt_tokens=len(PROMPT), block_ids=([],), seed=5,
        params=SamplingParams(max_tokens=None, **params),
    )  # fmt: skip
    columns.enter((row,), np.zeros((1, 0), dtype=np.int32), np.zeros(0, dtype=np.intp))
    state.enter((row,))
    slots = np.zeros(DRAWS, dtype=np.intp)
    positions = np.arange(FIRST, FIRST + DRAWS, dtype=np.int32)
    sampling = SamplingTensors(
        temperature=torch.from_numpy(state.temperature(slots)),
        seed=torch.full((DRAWS,), row.seed),
        position=torch.from_numpy(positions.astype(np.int64)),
        any_greedy=False,
    )
    sampler = Sampler(resolve_ops("cpu", FLOAT32, backend=backend).ops)
    return sampler(LOGITS.repeat(DRAWS, 1), sampling, state.shaped_rows(slots, positions))


def plus(amounts: dict[int, float]) -> torch.Tensor:
    return LOGITS + torch.tensor([amounts.get(token, 0.0) for token in range(VOCAB)])


def only(tokens: set[int], logits: torch.Tensor = LOGITS) -> torch.Tensor:
    return torch.tensor([logits[t] if t in tokens else NEVER for t in range(VOCAB)])


REPEATED = torch.tensor([2.0 / 1.5, 1.0 / 1.5, 0.5 / 1.5, 0.0, -1.0 * 1.5, -3.0])
BIASED = plus({0: -1.5, 4: 2.5})
# parameters → the logits that the softmax is of.
CASES: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
    "bias": ({"logit_bias": {0: -1.5, 4: 2.5}}, BIASED),
    "bias, then temperature": (
        {"logit_bias": {0: -1.5, 4: 2.5}, "temperature": 0.7}, BIASED / 0.7,
    ),
    "bias, then top_k": ({"logit_bias": {0: -1.5, 4: 2.5}, "top_k": 2}, only({4, 1}, BIASED)),
    "repetition, of prompt and answer": ({"repetition_penalty": 1.5}, REPEATED),
    "presence, of the answer": ({"presence_penalty": 1.2}, plus({1: -1.2, 2: -1.2, 3: -1.2})),
    "frequency, of the answer": ({"frequency_penalty": 0.6}, plus({1: -1.2, 2: -0.6, 3: -0.6})),
    "repetition, then presence and frequency": (
        {"repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 0.25},
        REPEATED + torch.tensor([0, 0.5 - 0.5, 0.5 - 0.25, 0.5 - 0.25, 0, 0]),
    ),
    "allowed": ({"allowed_token_ids": (1, 3, 5)}, only({1, 3, 5})),
    "bad words": ({"bad_words_token_ids": ((0,), (1, 2, 3), (3, 4))}, only({1, 2, 4, 5})),
    "fewest tokens": ({"min_tokens": DRAWS + FIRST, "stop_token_ids": (3,)}, only({0, 2, 4, 5})),
    "fewest tokens are there": ({"min_tokens": len(ANSWER)}, LOGITS),
}  # fmt: skip


@pytest.mark.singles
@pytest.mark.parametrize("backend", ["auto", "torch_ref"])
@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_definition(case: str, backend: str) -> None:
    params, logits = CASES[case]
    probabilities = logits.softmax(0).double()
    counts = torch.bincount(drawn(backend, **params), minlength=VOCAB).double()
    assert counts[probabilities == 0].sum() == 0, "an impossible token was drawn"
    support = probabilities > 0
    expected = probabilities[support] * DRAWS
    # Chi-square: 35 is beyond p = 1e-5 for five degrees of freedom.
    assert ((counts[support] - expected) ** 2 / expected).sum() < 35
