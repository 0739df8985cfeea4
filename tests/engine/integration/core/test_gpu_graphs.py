"""On a GPU: graphs, eager steps and the reference give the same greedy tokens.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.request import TokenLogprobs
from atom.model_engine.runner.cuda_graphs.prompt_graphs import PromptGraphs
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.step_pipeline import StepPipeline
from atom.model_ops.backends import resolve_ops
from atom.speculative_config import SpeculativeConfig
from atom.utils.device import detect_device
from tests.engine.ops.inputs import BFLOAT16
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.models.draft_checkpoints import add_mtp_layer, make_draft_model, make_eagle3
from tests.support.models.tiny_model import LLAMA3_ROPE_SCALING, make_tiny_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "qwen3": {"architecture": "qwen3", "head_dim": 64},
    "llama3-rope": {"architecture": "llama", "rope_scaling": LLAMA3_ROPE_SCALING, "head_dim": 32},
    # Two groups of layers, each with a block table of its own, and heads of no power of two.
    "gemma3-windows": {
        "architecture": "gemma3",
        "layers": 4,
        "head_dim": 40,
        "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
            },
            "query_pre_attn_scalar": 40,
        },
    },
    "gemma2-capped": {
        "architecture": "gemma2",
        "layers": 2,
        "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 8.0,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    },
    "glm4-moe": {
        "architecture": "glm4_moe",
        "extra": {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "n_group": 4,
            "topk_group": 2,
            "use_qk_norm": True,
        },
    },
    "qwen3-moe": {
        "architecture": "qwen3_moe",
        "layers": 4,
        "extra": {
            "num_experts": 20,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
        },
    },
    "gpt-oss": {
        "architecture": "gpt_oss",
        "attention_bias": True,
        "extra": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24},
    },
    "llama4": {
        "architecture": "llama4",
        "layers": 4,
        "extra": {
            "num_local_experts": 5,
            "attention_chunk_size": 20,
            "floor_scale": 16,
            "interleave_moe_layer_step": 2,
        },
    },
    # One entry of a token for all heads, of sizes that are no powers of two, and no experts.
    "deepseek3-dense": {
        "architecture": "deepseek3",
        "heads": 4,
        "extra": {"kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8},
    },
    # An indexer that selects fewer tokens than most prompts have.
    "deepseek32": {
        "architecture": "deepseek32",
        "heads": 4,
        "extra": {"index_topk": 20, "index_n_heads": 16, "index_head_dim": 24},
    },
}
OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 20,
    "dtype": "float32",
    "gpu_memory_utilization": 0.5,
}


@pytest.fixture(scope="module", params=CHECKPOINTS, ids=str)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return make_tiny_checkpoint(folder, **CHECKPOINTS[request.param])


def prompts(vocab_size: int, count: int = 17) -> list[list[int]]:
    draw = np.random.default_rng(3)
    return [draw.integers(3, vocab_size, size=n).tolist() for n in draw.integers(1, 120, count)]


def tokens(checkpoint: Path, **options: Any) -> list[list[int]]:
    params = options.pop("params", {})
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, **options})
    wanted = {"max_tokens": 40, "ignore_eos": True, **params}
    return driver.generate(prompts(driver.vocab_size), **wanted)


def test_every_operation_that_a_gpu_gets_may_be_captured() -> None:
    """Otherwise the tests below compare eager steps with eager steps."""
    assert resolve_ops(detect_device("auto").type, BFLOAT16).uncapturable == ()


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    return tokens(checkpoint, device="cpu", num_kv_blocks=400)


def test_graphs_give_the_references_greedy_tokens(checkpoint, expected) -> None:
    assert tokens(checkpoint, device="auto") == expected


def test_steps_with_short_prompts_are_replayed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, as no prompt's log-probabilities are wanted; but where an indexer selects."""
    replayed, prompted = [], []
    forward, submit = PromptGraphs.forward, StepRunner.submit
    monkeypatch.setattr(
        PromptGraphs,
        "forward",
        lambda graphs, bucket, *step: replayed.append(bucket) or forward(graphs, bucket, *step),
    )
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, "device": "auto"})
    monkeypatch.setattr(
        StepRunner,
        "submit",
        lambda steps, batch: (
            prompted.append(batch.num_decodes < len(batch.slots)) or submit(steps, batch)
        ),
    )
    driver.generate(prompts(driver.vocab_size), max_tokens=40, ignore_eos=True)
    assert len(replayed) == (0 if "deepseek32" in str(checkpoint) else sum(prompted))
    assert sum(prompted) > 10


def test_eager_steps_give_the_same(checkpoint, expected) -> None:
    assert tokens(checkpoint, device="auto", enforce_eager=True) == expected


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize(("method", "drafts"), [("ngram", 1), ("ngram", 4), ("suffix", 4)])
def test_speculation_gives_the_same(checkpoint, expected, method, drafts, enforce_eager) -> None:
    asked = SpeculativeConfig(method=method, num_tokens=drafts, fewest_matched=1, adaptive=False)
    assert (
        tokens(checkpoint, device="auto", speculative=asked, enforce_eager=enforce_eager)
        == expected
    )


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("method", ["mtp", "eagle3", "draft_model"])
def test_layers_that_draft_change_no_token(
    tmp_path: Path, method: str, enforce_eager: bool
) -> None:
    draft = None
    if method == "mtp":
        folder = make_tiny_checkpoint(tmp_path / "glm", **CHECKPOINTS["glm4-moe"])
        add_mtp_layer(folder)
    elif method == "draft_model":
        folder = make_tiny_checkpoint(tmp_path / "qwen", "qwen3", layers=3, head_dim=32)
        draft = make_draft_model(tmp_path / "draft", folder)
    else:
        folder = make_tiny_checkpoint(tmp_path / "llama", "llama", layers=7, head_dim=32)
        draft = tmp_path / "draft"
        make_eagle3(draft, folder, draft_vocabulary=200, layer="layers.0")
    for adaptive in (False, True):
        asked = SpeculativeConfig(
            method=method, draft_model=draft and str(draft), num_tokens=3, adaptive=adaptive
        )
        # Of drawn tokens a near tie may fall the other way, rarely.
        for params, astray in (({}, 0), ({"temperature": 0.8, "seed": 5, "top_k": 20}, 1)):
            expected = tokens(folder, device="auto", enforce_eager=True, params=params)
            found = tokens(
                folder, device="auto", speculative=asked, enforce_eager=enforce_eager, params=params
            )
            assert sum(a != b for a, b in zip(found, expected, strict=True)) <= astray


def test_reference_backend_on_the_gpu_gives_the_same(checkpoint, expected) -> None:
    assert tokens(checkpoint, device="auto", backend="torch_ref") == expected


def test_sampling_apart_from_the_forwards_graph_gives_the_same(checkpoint, expected) -> None:
    assert tokens(checkpoint, device="auto", samples_later=True) == expected


def test_preemption_under_graphs_gives_the_same(checkpoint, expected) -> None:
    small = tokens(
        checkpoint, device="auto", num_kv_blocks=40, enable_prefix_caching=False, max_model_len=512
    )
    assert small == expected


def test_sampled_tokens_are_the_references(checkpoint) -> None:
    params = {"temperature": 0.8, "seed": 5}
    at_reference = tokens(checkpoint, device="cpu", num_kv_blocks=400, params=params)
    with_graphs = tokens(checkpoint, device="auto", params=params)
    same = sum(a == b for a, b in zip(at_reference, with_graphs, strict=True))
    # The race is decided by a float32 division: a near tie may fall the other way, rarely.
    assert same >= len(at_reference) - 1


def test_top_k_rows_run_beside_greedy_ones(checkpoint) -> None:
    params = {"temperature": 0.8, "top_k": 5, "seed": 5}
    at_reference = tokens(checkpoint, device="cpu", num_kv_blocks=400, params=params)
    on_gpu = tokens(checkpoint, device="auto", params=params)
    same = sum(a == b for a, b in zip(at_reference, on_gpu, strict=True))
    assert same >= len(at_reference) - 1


@pytest.mark.parametrize(
    "limits", [{"top_k": 20, "top_p": 0.95}, {"top_p": 0.7}, {"min_p": 0.05, "top_k": 100}]
)
def test_limits_in_the_graph_give_the_eager_tokens(checkpoint, limits) -> None:
    params = {"temperature": 0.8, "seed": 5, **limits}
    eager = tokens(checkpoint, device="auto", enforce_eager=True, params=params)
    assert tokens(checkpoint, device="auto", params=params) == eager


def mixed_answers(
    checkpoint: Path, **options: Any
) -> tuple[list[list[int]], list[list[TokenLogprobs]]]:
    """Tokens, and what is told of them."""
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, **options})
    return driver.generate_each(mixed_requests(driver.vocab_size, 40)), driver.logprobs


@pytest.mark.parametrize("eager", [False, True])
def test_every_sampling_control_gives_the_references_tokens(checkpoint, eager) -> None:
    expected, expected_told = mixed_answers(checkpoint, device="cpu", num_kv_blocks=400)
    tokens, told = mixed_answers(checkpoint, device="auto", enforce_eager=eager)
    pairs = list(zip(expected, tokens, strict=True))
    # Greedy rows are even; of the drawn ones a near tie may fall the other way, rarely.
    assert all(a == b for a, b in pairs[::2])
    assert sum(a != b for a, b in pairs) <= 1
    compared = 0
    for right, found, (a, b) in zip(expected_told, told, pairs, strict=True):
        if a == b:
            assert [entry.token_id for entry in found] == [entry.token_id for entry in right]
            for one, other in zip(found, right, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
                compared += 1
    # A model that ends its answers early tells of fewer tokens.
    assert compared >= sum(map(len, expected_told)) - max(map(len, expected_told)) > 0


def test_no_step_makes_the_host_wait_for_the_device(checkpoint) -> None:
    """Whatever its rows ask for: the second round runs with torch refusing every such call."""
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, "device": "auto"})
    requests = mixed_requests(driver.vocab_size, 40)
    first = driver.generate_each(requests)
    driver.scheduler.blocks.reset_prefix_cache()
    driver.pipeline = StepPipeline(
        driver.scheduler, NeverWaits(driver.executor), depth=driver.executor.steps_behind
    )
    assert driver.generate_each(requests) == first


class NeverWaits:
    """An executor whose submissions fail where they would wait for the device."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor

    def submit(self, batch: ScheduledBatch) -> int:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return self._executor.submit(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def collect(self, ticket: int) -> ScheduledBatchOutput:
        return self._executor.collect(ticket)
