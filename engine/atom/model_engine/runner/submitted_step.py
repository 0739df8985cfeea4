"""A batch on its way through a step: what its forward gave, and what sampling will add.

Values between the halves of StepRunner, and between it and a proposer of drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import Slots
from atom.model_engine.runner.cuda_graphs.decode_graphs import ForwardOutput
from atom.model_engine.runner.host_tokens import (
    PendingLogprobs,
    PendingRuns,
    PendingTokens,
    PendingVectors,
)
from atom.model_engine.runner.image_inputs import Encoded
from atom.model_engine.runner.slots.input_batch import StepInputs
from atom.model_ops.sampling.draws_ahead import DrawsAhead
from atom.models.decoder.hidden_states import HiddenStates


@dataclass(frozen=True, slots=True)
class EagerTokens:
    """A step's inputs, and the hidden states of all its tokens; next_ids [T] int64: the prompts'
    following tokens, as far as they are known."""

    inputs: StepInputs
    states: HiddenStates
    next_ids: torch.Tensor


@dataclass(slots=True)
class SubmittedStep:
    """A batch whose forward was submitted. sample_slots, request_ids, positions: of the rows that
    sample, in order, and of the tokens that they draw; forward: None if no row samples, and after
    sampling; pending, logprobs: its tokens, once sampled, and their requested scores; behind: the
    drafts that precede its draws, if rows may carry any; may_run: the scheduler counts more than
    one token of some row; reporting: the rows of `logprobs`; computed: the inputs of the step's
    tokens, and drawn: all draws [n] int64, if a proposer catches up; pooled: a pooling model's
    result; failed: request ids whose row could not be set up, and the reasons; encoded: images."""

    sample_slots: Slots
    request_ids: NDArray[np.int64]
    positions: NDArray[np.int32]
    forward: ForwardOutput | None = None
    pending: PendingTokens | PendingRuns | None = None
    logprobs: PendingLogprobs | None = None
    prompt_logprobs: PendingLogprobs | None = None
    behind: DrawsAhead | None = None
    may_run: bool = False
    reporting: NDArray[np.intp] | None = None
    computed: EagerTokens | None = None
    drawn: torch.Tensor | None = None
    pooled: PendingVectors | None = None
    failed: tuple[tuple[int, str], ...] = ()
    encoded: Encoded | None = None
