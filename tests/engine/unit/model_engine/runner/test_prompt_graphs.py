"""Steps with prompts that replay graphs are those that run eagerly, in buckets that they do not
fill.

Graphs are played by functions, since only a GPU records any: a replay computes anew what was
captured, from the memory that it was captured with.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.model_engine.runner.cuda_graphs.prompt_buckets import prompt_buckets
from atom.model_engine.runner.cuda_graphs.prompt_graphs import PromptGraphs
from atom.model_engine.runner.step_variant import PLAIN, StepVariant
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.speculated_answers import (
    AMPLE_BLOCKS,
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    PlayedEngine,
    Setting,
    differing,
    some_requests,
)
from tests.support.kernels.played_graphs import PlayedPool
from tests.support.models.tiny_model import make_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 256, "num_kv_blocks": AMPLE_BLOCKS,
    "block_size": BLOCK_SIZE, "max_num_seqs": 8, "backend": "torch_ref",
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "deepseek3": {"heads": 4},
    "qwen3_moe": {
        "extra": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    },
}
# Two groups of layers, each with block tables of its own.
WINDOWS: dict[str, Any] = {
    "layers": 4,
    "tie_word_embeddings": True,
    "extra": {
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 40,
    },
}


def replaying(folder: Path) -> tuple[CoreDriver, PlayedPool]:
    """An engine that replays played graphs of steps with prompts, and decodes eagerly."""
    driver = CoreDriver(str(folder), **OPTIONS)
    steps: Any = driver.executor.runner.steps  # type: ignore[attr-defined]
    pool = PlayedPool(lambda: None)
    with torch.inference_mode():
        steps.graphs = Prompted(steps.build_graphs(pool, prompts=True).prompts, steps)
        steps.graphs.prompts.capture(lambda share: None)
    return driver, pool


class Prompted:
    """Graphs of steps with prompts alone."""

    def __init__(self, prompts: PromptGraphs, steps: Any) -> None:
        self.prompts = prompts
        replay = steps._replay

        def prompts_alone(graphs: Any, batch: Any, *of_step: Any) -> Any:
            has_prompts = batch.num_decodes < len(batch.slots)
            return replay(graphs, batch, *of_step) if has_prompts else None

        steps._replay = prompts_alone

    def takes(self, variant: StepVariant) -> bool:
        return variant == PLAIN


SETTINGS = {
    "mixed": Setting(num_blocks=11),
    "a-step-behind": Setting(num_blocks=11, depth=1, budget=48, aborts=True),
    "prompts-first": Setting(num_blocks=11, policy="prefill_first"),
}


@pytest.mark.singles
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_eager_steps(tmp_path: Path, family: str, name: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, family, seed=5, **FAMILIES[family])
    plain = CoreDriver(str(folder), **OPTIONS)
    replayed, pool = replaying(folder)
    eos = plain.config.model.eos_token_ids
    requests = some_requests(77, 16, plain.vocab_size)
    expected = PlayedEngine(plain.executor, Setting(), eos).play(requests)
    found = PlayedEngine(replayed.executor, SETTINGS[name], eos).play(requests)
    assert differing(found, expected) == []
    assert pool.replays["PromptGraphs._forward"] > 5


def test_each_group_of_layers_has_its_tables(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "gemma3", seed=5, **WINDOWS)
    plain = CoreDriver(str(folder), **OPTIONS)
    replayed, pool = replaying(folder)
    requests = mixed_requests(plain.vocab_size, 12)
    assert replayed.generate_each(requests) == plain.generate_each(requests)
    for found, expected in zip(replayed.logprobs, plain.logprobs, strict=True):
        assert [each.token_id for each in found] == [each.token_id for each in expected]
        # As `differing` compares them: products of padded rows are rounded otherwise.
        close = pytest.approx([each.logprob for each in expected], abs=1e-3)
        assert [each.logprob for each in found] == close
    assert pool.replays["PromptGraphs._forward"] > 5


def test_a_model_too_large_for_any_bucket_compiles_none_ahead() -> None:
    """As one of 400 billion parameters on a device: 64 tokens keep it busier than its host."""
    parts: Any = SimpleNamespace(model=None, state=None, variants=StepVariant(lora=True).narrower())
    graphs = PromptGraphs(parts, prompt_buckets(64, 2048, host_bound_tokens=40))
    assert graphs.captures() == []
    graphs.compile_ahead()
