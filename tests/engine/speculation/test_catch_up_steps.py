"""What a proposer is told of a step that a graph replayed is what it is told of an eager one.

There is no graph on the CPU; the inputs that are made again of the slots are compared with those
that the step ran on, for every step that only decodes.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from atom.model_engine.runner.cuda_graphs.decode_graphs import ForwardOutput
from atom.model_engine.runner.speculation.catch_up_steps import computed_eagerly
from atom.model_engine.runner.speculation.speculative_step_runner import SpeculativeStepRunner
from atom.model_engine.runner.speculation.verify_step import VerifyStep
from atom.model_engine.runner.submitted_step import SubmittedStep
from atom.sampling_params import SamplingParams
from atom.speculation.draft_lengths import FixedDraftLengths, Slots
from atom.speculation.proposer import ComputedTokens
from atom.speculative_config import SpeculativeConfig
from benchmarks.engines.offline_engine import OfflineEngine
from tests.support.models.draft_checkpoints import add_mtp_layer
from tests.support.models.tiny_model import make_tiny_checkpoint


def test_slots_tell_what_the_inputs_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_checkpoint(tmp_path / "glm", "glm4_moe", seed=3)
    add_mtp_layer(folder)
    kinds: list[type[SubmittedStep]] = []
    catch_up = SpeculativeStepRunner._catch_up

    def both(
        self: SpeculativeStepRunner, step: SubmittedStep, forward: ForwardOutput | None
    ) -> None:
        eager, drawn = step.computed, step.drawn
        assert eager is not None
        assert self._followed is not None
        if forward is not None and eager.inputs.logits_indices is None:  # every token is a decode's
            kinds.append(type(step))
            expected = computed_eagerly(step, eager)
            if isinstance(step, VerifyStep):
                assert drawn is not None
                assert step.counts is not None
                replayed = self._followed.computed_runs(
                    step.layout, drawn, step.counts, eager.states
                )
            else:
                replayed = self._followed.computed_decodes(forward.slots, eager.states)
            same(replayed, expected)
        catch_up(self, step, forward)

    steps = itertools.count()

    def every_second(
        self: FixedDraftLengths, slots: Slots, computed: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """None of all rows, then as many as the row's slot says."""
        return (next(steps) % 2 * slots % 3).astype(np.int32)

    monkeypatch.setattr(SpeculativeStepRunner, "_catch_up", both)
    monkeypatch.setattr(FixedDraftLengths, "choose", every_second)
    engine = OfflineEngine(
        str(folder), speculative=SpeculativeConfig(method="mtp", num_tokens=2, adaptive=False),
        max_model_len=128, max_num_seqs=4, num_kv_blocks=32, max_num_batched_tokens=64,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    for seed, length in enumerate((3, 17, 30)):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=40, ignore_eos=True)
        engine.add(engine.random_prompt(length, draw), params)
    engine.run()
    engine.close()
    assert kinds.count(VerifyStep) > 5
    assert kinds.count(SubmittedStep) > 5


def same(one: ComputedTokens, other: ComputedTokens) -> None:
    pairs = [
        (one.positions, other.positions), (one.next_ids, other.next_ids),
        (one.slots, other.slots), (one.newest, other.newest),
    ]  # fmt: skip
    for mine, theirs in zip(one.attention, other.attention, strict=True):
        pairs.append((mine.slot_mapping, theirs.slot_mapping))
        pairs.append((mine.context_lens, theirs.context_lens))
        columns = theirs.block_tables.shape[1]
        pairs.append((mine.block_tables[:, :columns], theirs.block_tables))
    for mine, theirs in pairs:
        assert torch.equal(mine, theirs)
