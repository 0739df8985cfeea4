"""Prompts with images give the tokens and logits of transformers' models, however they are cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from atom.model_ops.embed_head import ParallelLMHead
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.vision_checkpoints import (
    Picture,
    PicturePrompt,
    VisionModel,
    pictures_and_texts,
    text,
)

NEW_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
SECTIONS: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 5_000.0,
    "mrope_interleaved": True,
}
CASES: dict[str, dict[str, Any]] = {
    "pixtral": {"kind": "mistral3"},
    "pixtral-unmerged": {"kind": "mistral3", "whole": {"spatial_merge_size": 1}},
    "pixtral-merged-by-three": {
        "kind": "mistral3", "num_key_value_heads": 1,
        "whole": {"spatial_merge_size": 3, "multimodal_projector_bias": True},
        "vision": {"patch_size": 10, "image_size": 120},
    },
    "pixtral-odd-heads": {
        "kind": "mistral3",
        "whole": {"projector_hidden_act": "silu", "tie_word_embeddings": False},
        "vision": {
            "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3,
            "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
        },
    },
    "pixtral-inner-layer": {
        "kind": "mistral3", "whole": {"vision_feature_layer": 1, "tie_word_embeddings": False},
        "vision": {"num_hidden_layers": 2, "intermediate_size": 20, "head_dim": 16},
        "sliding_window": 24,
    },
    "gemma3": {
        "kind": "gemma3",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma4": {"kind": "gemma4"},
    "gemma4-causal": {
        "kind": "gemma4", "use_bidirectional_attention": None, "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 6, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 300,
        "layer_types": [*["sliding_attention", "full_attention"] * 3],
        "vision": {"use_clipped_linears": True, "standardize": True, "num_key_value_heads": 1},
    },
    "kimi-k2.5": {"kind": "kimi-k2.5"},
    "kimi-k2.5-odd": {
        "kind": "kimi-k2.5", "num_hidden_layers": 2, "n_routed_experts": 3,
        "num_experts_per_tok": 1, "whole": {"projection_hidden_size": 48},
        "vision": {
            "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3, "patch_size": 6,
            "merge_kernel_size": [3, 3], "pos_emb_height": 4, "pos_emb_width": 4,
            "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
        },
    },
    "llama4": {"kind": "llama4"},
    "qwen3-vl": {"kind": "qwen3-vl"},
    "qwen3-vl-shallow": {
        "kind": "qwen3-vl", "num_key_value_heads": 1,
        "vision": {
            "deepstack_visual_indexes": [], "spatial_merge_size": 1, "num_position_embeddings": 25,
            "hidden_size": 48, "num_heads": 3,
        },
    },
    "qwen3-vl-deep": {
        "kind": "qwen3-vl", "num_hidden_layers": 4, "tie_word_embeddings": True, "head_dim": 24,
        "rope_parameters": {**SECTIONS, "mrope_section": [4, 3, 5]},
        "vision": {
            "depth": 4, "deepstack_visual_indexes": [0, 2, 3], "patch_size": 6,
            "temporal_patch_size": 1, "spatial_merge_size": 3, "hidden_act": "gelu",
        },
    },
    "qwen3-vl-experts": {"kind": "qwen3-vl-moe"},
    "qwen3-vl-experts-odd": {
        "kind": "qwen3-vl-moe", "num_experts": 3, "num_experts_per_tok": 1, "mlp_only_layers": [],
        "rope_parameters": {**SECTIONS, "mrope_section": [2, 4, 2]},
        "vision": {"depth": 2, "deepstack_visual_indexes": [1], "num_position_embeddings": 36},
    },
    "qwen3.5": {"kind": "qwen3.5"},
    "qwen3.5-odd": {
        "kind": "qwen3.5", "head_dim": 24, "num_key_value_heads": 1,
        "rope_parameters": {
            **SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 1],
        },
        "vision": {"depth": 2, "num_position_embeddings": 25, "spatial_merge_size": 3},
    },
    "qwen3.5-experts": {"kind": "qwen3.5-moe"},
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(tmp_path_factory.mktemp("vision"), **CASES[request.param])


@pytest.fixture(scope="module")
def prompts(model: VisionModel) -> list[PicturePrompt]:
    return pictures_and_texts(model)


@pytest.fixture(scope="module")
def expected(model: VisionModel, prompts: list[PicturePrompt]) -> list[list[int]]:
    return [model.greedy(prompt, NEW_TOKENS) for prompt in prompts]


def driver(model: VisionModel, **options: Any) -> CoreDriver:
    given = {"max_num_batched_tokens": 64, "max_num_seqs": 6, "block_size": 16, **options}
    return CoreDriver(str(model.folder), **given)


def answers(engine: CoreDriver, prompts: list[PicturePrompt]) -> list[list[int]]:
    return engine.generate_each([prompt.asked(GREEDY) for prompt in prompts])


@pytest.mark.sampled(8)
@pytest.mark.singles
@pytest.mark.parametrize("step_tokens", [7, 64, 1024])
def test_greedy_tokens_equal_transformers_in_chunks(
    model: VisionModel, prompts: list[PicturePrompt], expected: list[list[int]], step_tokens: int
) -> None:
    if model.kind == "gemma4" and model.family.sees_both_ways:
        step_tokens = max(step_tokens, 16)  # as many as the largest image has
    engine = driver(model, max_num_batched_tokens=step_tokens)
    assert answers(engine, prompts) == expected


@pytest.mark.sampled(5)
@pytest.mark.rotated
@pytest.mark.parametrize("block_size", [1, 32])
def test_any_block_size_and_a_host_a_step_late_give_the_same_tokens(
    model: VisionModel, prompts: list[PicturePrompt], expected: list[list[int]], block_size: int
) -> None:
    engine = driver(model, block_size=block_size, depth=1)
    assert answers(engine, prompts) == expected
    assert answers(engine, prompts) == expected


@pytest.mark.sampled(4)
@pytest.mark.rotated
def test_preempted_prompts_continue_with_the_same_tokens(
    model: VisionModel, prompts: list[PicturePrompt], expected: list[list[int]]
) -> None:
    """After some steps all rows lose their blocks, in the middle of images too; then after ever
    more, so that long prompts end."""
    engine = driver(model, max_num_batched_tokens=32)
    numbers = [engine.add(*prompt.asked(GREEDY)) for prompt in prompts]
    found: dict[int, list[int]] = {number: [] for number in numbers}
    steps, due = itertools.count(1), 3
    while engine.has_work():
        result = engine.step()
        for each in () if result is None else (result,):
            for number, run in each.runs():
                found[number] += run
        if next(steps) == due:
            due += max(3, due // 3)
            engine.pipeline.preempt_all()
            engine.scheduler.blocks.reset_prefix_cache()
    assert list(found.values()) == expected
    images = sum(len(prompt.images) for prompt in prompts)
    assert engine.scheduler.stats().images_encoded_total < images


@pytest.mark.sampled(3)
@pytest.mark.rotated
def test_drafts_from_the_text_change_no_token(
    model: VisionModel, prompts: list[PicturePrompt], expected: list[list[int]]
) -> None:
    engine = driver(model, speculative=ngram_drafts())
    repeated = [*prompts, *prompts]
    assert answers(engine, repeated) == [*expected, *expected]
    assert engine.scheduler.stats().draft_tokens_total > 0


@pytest.mark.singles
@pytest.mark.parametrize("backend", ["auto", "torch_ref"])
def test_logits_equal_transformers(
    model: VisionModel, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    compute = ParallelLMHead.forward

    def recorded(head: ParallelLMHead, hidden: torch.Tensor) -> torch.Tensor:
        found = compute(head, hidden)
        seen.append(found.clone())
        return found

    monkeypatch.setattr(ParallelLMHead, "forward", recorded)
    prompt = model.prompt(text(11, 1), Picture(2, 3), text(5, 2), Picture(3, 2, 1), text(9, 3))
    engine = driver(model, backend=backend, max_num_batched_tokens=24)
    asked = SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=1
    )
    (new,) = engine.generate_each([prompt.asked(asked)])
    expected = model.logits(prompt, new)
    length = len(prompt.token_ids)
    in_prompt, decoded = torch.cat(seen).split([length - 1, NEW_TOKENS])
    assert (in_prompt - expected[: length - 1]).abs().max() <= 1e-4
    assert (decoded - expected[length - 1 : -1]).abs().max() <= 1e-4


def ngram_drafts() -> SpeculativeConfig:
    return SpeculativeConfig(num_tokens=3, fewest_matched=1, adaptive=False)
