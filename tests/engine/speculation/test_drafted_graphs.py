"""Steps with drafts that replay a graph are those that run eagerly.

Graphs are played by functions here, since only a GPU records any: what is tested is that a step
gives them its slots, tokens and blocks, and takes from them what it samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from atom.model_engine.runner import graph_runner
from atom.model_engine.runner.graph_runner import DecodeGraphs, GraphVariant
from atom.model_ops.backends.interface import SamplingTensors
from atom.models.hidden_states import HiddenStates
from atom.speculative_config import SpeculativeConfig
from tests.support.core_driver import CoreDriver
from tests.support.speculated_answers import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    PlayedEngine,
    Setting,
    differing,
    some_requests,
)
from tests.support.tiny_model import make_tiny_checkpoint


@dataclass
class PlayedGraph:
    """A graph whose replay computes anew, into the tensors of its capture."""

    graphs: DecodeGraphs
    variant: GraphVariant
    states: HiddenStates
    sampling: SamplingTensors
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        states, sampling = self.graphs._forward(self.variant)
        self.states.last.copy_(states.last)
        for name in ("temperature", "seed", "position"):
            getattr(self.sampling, name).copy_(getattr(sampling, name))


class PlayedGraphs(DecodeGraphs):
    """A graph for every number of tokens, so that none is padded."""

    def record(self) -> list[PlayedGraph]:
        self._sizes = list(range(1, len(self._slots) + 1))
        hidden_size = self._model.spec.hidden_size
        played = []
        for size in self._sizes:
            variant = GraphVariant(size, even=False, drafted=True)
            zeros = torch.zeros(size)
            sampling = SamplingTensors(zeros.clone(), zeros.long(), zeros.long())
            states = HiddenStates(torch.zeros(size, hidden_size))
            graph = PlayedGraph(self, variant, states, sampling)
            self._graphs[variant] = graph_runner._Graphs(cast(Any, graph), states, sampling, {})
            played.append(graph)
        return played


@pytest.mark.parametrize("depth", [0, 1])
def test_answers_are_those_of_eager_steps(
    tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_checkpoint(tmp_path, "qwen3", seed=5)
    speculative = SpeculativeConfig(num_tokens=3, fewest_matched=1, most_matched=3)
    options: dict[str, Any] = {
        "max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 256, "num_kv_blocks": 64,
        "block_size": BLOCK_SIZE,
    }  # fmt: skip
    plain = CoreDriver(str(folder), max_num_seqs=8, **options)
    drafting = CoreDriver(str(folder), max_num_seqs=32, speculative=speculative, **options)
    steps: Any = drafting.executor.runner._steps
    graphs = PlayedGraphs(steps._model, steps._ops, steps.slots.device, BLOCK_SIZE, MAX_MODEL_LEN)
    played = graphs.record()
    steps.graphs = graphs
    # Only those with drafts are played.
    monkeypatch.setattr(graphs, "forward", None)
    captured = steps._is_captured
    monkeypatch.setattr(
        steps, "_is_captured", lambda batch, step: hasattr(step, "rows") and captured(batch, step)
    )
    eos = drafting.config.model.eos_token_ids
    requests = some_requests(77, 24, drafting.vocab_size)
    expected = PlayedEngine(plain.executor, Setting(), eos).play(requests)
    answers = PlayedEngine(
        drafting.executor, Setting(drafts=3, depth=depth, num_blocks=11), eos
    ).play(requests)
    assert differing(answers, expected) == []
    assert sum(graph.replays for graph in played) > 20
