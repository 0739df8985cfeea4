"""A simulated engine schedules what the real one schedules, batch by batch, on the same clock.

The real side is an engine opened from a config.json, with its runner, tokens and cache; the
simulated side knows the facts and the number of blocks. Both get the same requests at the same
times, and the same seconds for each step. Dense, window and state layers; memory that forces
preemption; shared prefixes; conversations; a host that is a step behind.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom.advisor.engine_form import EngineForm
from atom.advisor.simulation import Due, Fleet, simulate
from atom.advisor.step_shape import StepShape
from atom.advisor.virtual.executor import VirtualClock, VirtualExecutor
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput, TokenMask
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.request import Request
from atom.model_engine.runner.kv_cache import run_limits
from atom.model_engine.step_pipeline import StepPipeline
from atom.sampling_params import SamplingParams
from atom.sizing import KvBudget, KvElement, Speculation, kv_layout
from benchmarks.engines.offline_engine import OfflineEngine

SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
SHAPES: dict[str, dict[str, Any]] = {
    "dense": SHAPE,
    "windows": {
        **SHAPE,
        "architectures": ["MistralForCausalLM"],
        "sliding_window": 48,
    },
    "states": {
        **SHAPE,
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.5,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
BLOCK = 16
LONGEST = 256
SCARCE = 20


@dataclass(frozen=True)
class Conversations:
    """Requests of some conversations: each turn begins with the prompt of the turn before, and
    comes a moment after its answer. Implements Load."""

    dues: Sequence[Due]
    prompts: Sequence[list[int]]
    outputs: Sequence[int]

    @classmethod
    def drawn(cls, seed: int) -> Conversations:
        draw = np.random.default_rng(seed)
        dues: list[Due] = []
        prompts: list[list[int]] = []
        outputs: list[int] = []
        for _ in range(8):
            text: list[int] = draw.integers(3, 100, size=int(draw.integers(1, 40))).tolist()
            for turn in range(3):
                text = text + draw.integers(3, 100, size=int(draw.integers(5, 50))).tolist()
                at = float(draw.uniform(0, 0.2)) if not turn else 0.0
                dues.append(Due(at, (len(dues) - 1,) if turn else (), 0.01))
                prompts.append(text[: LONGEST - 40])
                outputs.append(int(draw.integers(8, 40)))
        return cls(dues, prompts, outputs)

    def prompt(self, place: int) -> list[int]:
        return self.prompts[place]

    def output_tokens(self, place: int) -> int:
        return self.outputs[place]


def seconds_of(shape: StepShape) -> float:
    """Steps take longer with more tokens, so that prompts have to be cut."""
    return 0.002 + 0.001 * shape.tokens + 1e-6 * float(shape.contexts.sum())


class Recording:
    """A real executor on a virtual clock. It notes each batch."""

    def __init__(self, executor: StepExecutor, clock: VirtualClock) -> None:
        self.batches: list[dict[str, Any]] = []
        self._executor = executor
        self._clock = clock
        self._ends: dict[int, float] = {}
        self._free_at = 0.0

    def submit(self, batch: ScheduledBatch) -> int:
        self.batches.append(contents(batch))
        ticket = self._executor.submit(batch)
        self._free_at = max(self._clock.now, self._free_at) + seconds_of(StepShape.of(batch))
        self._ends[ticket] = self._free_at
        return ticket

    def sample(self, ticket: int, mask: TokenMask | None = None) -> None:
        self._executor.sample(ticket, mask)

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        self._clock.advance_to(self._ends.pop(ticket))
        return self._executor.collect(ticket)


def contents(batch: ScheduledBatch) -> dict[str, Any]:
    """Everything that a runner is told, but the tokens, which a simulation does not know."""
    return {
        "slots": batch.slots.tolist(),
        "requests": batch.req_ids.tolist(),
        "computed": batch.num_computed_tokens.tolist(),
        "scheduled": batch.num_scheduled_tokens.tolist(),
        "samples": batch.samples.tolist(),
        "decodes": batch.num_decodes,
        "appended": batch.block_appends.tolist(),
        "entered": [(row.slot, len(row.token_ids), row.block_ids) for row in batch.new_rows],
        "states": (batch.state_loads, batch.state_saves),
    }


def run_real(engine: OfflineEngine, load: Conversations, depth: int) -> list[dict[str, Any]]:
    """Drive an engine as its core does: take in what has come, then step."""
    clock = VirtualClock()
    recording = Recording(engine.executor, clock)
    pipeline = StepPipeline(engine.scheduler, recording, depth=depth)
    due = [(each.at_seconds, place) for place, each in enumerate(load.dues) if not each.after]
    heapq.heapify(due)
    while due or pipeline.has_work():
        if not pipeline.has_work():
            clock.advance_to(due[0][0])
        while due and due[0][0] <= clock.now:
            at, place = heapq.heappop(due)
            prompt, outputs = load.prompt(place), load.output_tokens(place)
            params = SamplingParams(max_tokens=outputs, ignore_eos=True)
            total = len(prompt) + outputs
            pipeline.add(Request(place, prompt, params, total, at))
        result = pipeline.step(clock.now)
        for row in () if result is None else result.finished:
            following = row.request_id + 1
            if following < len(load.dues) and load.dues[following].after == (row.request_id,):
                heapq.heappush(due, (clock.now + load.dues[following].delay_seconds, following))
    return recording.batches


def form_of(engine: OfflineEngine, depth: int) -> EngineForm:
    """Describe an engine by its facts, limits, and the blocks that it reports."""
    facts, limits, report = engine.config.model.facts, run_limits(engine.config), engine.report
    layout = kv_layout(facts, KvElement(4), 1, Speculation(0), report.block_size)
    budget = KvBudget(
        num_blocks=report.num_blocks,
        block_size=report.block_size,
        block_bytes=report.block_size * layout.bytes_per_token,
        limited_by="num_kv_blocks",
        available_bytes=0,
        tokens=report.kv_tokens,
        layout=layout,
        num_checkpoints=report.num_checkpoints,
    )
    return EngineForm(facts=facts, limits=limits, budget=budget, depth=depth)


@pytest.mark.sampled(3)
@pytest.mark.pairs
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("blocks", [SCARCE, 256], ids=["scarce", "ample"])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_simulated_batches_are_the_real_ones(
    kind: str, blocks: int, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[kind]))
    torch.set_num_threads(1)
    engine = OfflineEngine(
        str(tmp_path),
        device="cpu",
        load_dummy=True,
        max_model_len=LONGEST,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_kv_blocks=blocks,
        block_size=BLOCK,
    )
    load = Conversations.drawn(blocks)
    simulated: list[dict[str, Any]] = []
    submit = VirtualExecutor.submit

    def noted(self: VirtualExecutor, batch: ScheduledBatch) -> int:
        simulated.append(contents(batch))
        return submit(self, batch)

    monkeypatch.setattr(VirtualExecutor, "submit", noted)
    outcome = simulate(Fleet(form_of(engine, depth), seconds_of), load)
    real = run_real(engine, load, depth)
    for number, (ours, theirs) in enumerate(zip(simulated, real, strict=True)):
        assert ours == theirs, f"step {number}"
    stats = engine.scheduler.stats()
    assert outcome.steps == stats.steps_total > 60
    assert outcome.preemptions == stats.preemptions_total
    assert sum(each.cached for each in outcome.served if each) == stats.cached_tokens_total
    if blocks == SCARCE:
        assert outcome.preemptions > 0 or kind == "windows"  # which gives blocks back by itself
    else:
        assert outcome.preemptions == 0
        assert stats.cached_tokens_total > 0
    engine.close()
