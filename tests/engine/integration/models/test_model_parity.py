"""Greedy tokens of every architecture equal transformers', for prompts over blocks and chunks.

In the daily run each architecture meets each mechanism; the whole product is the long run's.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from atom.errors import ModelError
from atom.sizing import KvElement, ModelFacts, kv_layout
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.gemma4_checkpoints import GEMMA4
from tests.support.models.greedy_oracle import GreedyAnswers, token_by_token
from tests.support.models.hybrid_checkpoints import HYBRID
from tests.support.models.minimax_m3_checkpoints import MINIMAX_M3_WIDE
from tests.support.models.tiny_model import LLAMA3_ROPE_SCALING, make_tiny_checkpoint

NEW_TOKENS = 12
# Within one block, about to need another, across blocks of 16, and across chunks of 48 tokens.
PROMPT_LENGTHS = (1, 15, 14, 16, 30, 40, 46, 100, 150)


def prompts(vocab_size: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, vocab_size, size=n).tolist() for n in PROMPT_LENGTHS]


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
    "long_factor": [2.0 + 0.3 * pair for pair in range(8)],
}
FACTORS = ("short_factor", "long_factor")
# Every third layer attends in full; the others have a window, and a rope of their own.
GEMMA3 = {
    "sliding_window": 20,
    "layer_types": [
        "full_attention" if index % 3 == 2 else "sliding_attention" for index in range(7)
    ],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
    },
    "query_pre_attn_scalar": 20,
}
# As DeepSeek's own: scores are scaled for the lengthened context.
MLA_YARN = {
    **YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.9,
}  # fmt: skip
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "moe_intermediate_size": 40, "first_k_dense_replace": 1,
}  # fmt: skip
# Chunks of a block and a part of one; a query far behind is half as warm again as the first.
LLAMA4 = {
    "num_local_experts": 5, "attention_chunk_size": 20, "floor_scale": 16, "attn_scale": 0.2,
}  # fmt: skip
CHECKPOINTS = {
    "qwen3": {"architecture": "qwen3"},
    "qwen3-tied-sharded": {"architecture": "qwen3", "tie_word_embeddings": True, "shards": 2},
    "llama": {"architecture": "llama"},
    "llama3-rope": {"architecture": "llama", "rope_scaling": LLAMA3_ROPE_SCALING},
    "llama4-rope": {
        "architecture": "llama",
        "rope_scaling": {**LLAMA3_ROPE_SCALING, "high_freq_factor": 1.0},
    },
    "linear-rope": {
        "architecture": "llama",
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "dynamic-rope": {
        "architecture": "llama",
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
    },
    "yarn-rope": {"architecture": "qwen3", "rope_scaling": YARN},
    "longrope": {"architecture": "llama", "rope_scaling": LONGROPE},
    "llama-odd-heads": {
        "architecture": "llama", "heads": 6, "kv_heads": 3, "head_dim": 40, "hidden": 96,
        "attention_bias": True,
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen2-window": {
        "architecture": "qwen2", "layers": 3,
        "extra": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    },
    "mistral": {"architecture": "mistral", "extra": {"sliding_window": None}},
    "mistral-window": {"architecture": "mistral", "extra": {"sliding_window": 24}},
    "mixtral": {
        "architecture": "mixtral",
        "extra": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24},
    },
    "mixtral-one-expert-each": {
        "architecture": "mixtral", "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 72, "extra": {"num_local_experts": 3, "num_experts_per_tok": 1},
    },
    "qwen2-moe": {
        "architecture": "qwen2_moe", "layers": 3,
        "extra": {
            "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40, "mlp_only_layers": [1],
            "use_sliding_window": True, "sliding_window": 24,
        },
    },
    "qwen3-moe": {
        "architecture": "qwen3_moe", "layers": 4, "shards": 2,
        "extra": {
            "num_experts": 9, "num_experts_per_tok": 4, "moe_intermediate_size": 20,
            "norm_topk_prob": True, "decoder_sparse_step": 2,
        },
    },
    **HYBRID,
    "glm4-moe": {
        "architecture": "glm4_moe", "layers": 3, "attention_bias": True,
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "use_qk_norm": True,
            "n_shared_experts": 2,
        },
    },
    "glm4-moe-one-group": {
        "architecture": "glm4_moe", "heads": 6, "kv_heads": 3, "head_dim": 24, "hidden": 72,
        "extra": {
            "n_routed_experts": 5, "num_experts_per_tok": 1, "moe_intermediate_size": 28,
            "norm_topk_prob": False, "first_k_dense_replace": 0, "partial_rotary_factor": 0.25,
        },
    },
    "gpt-oss": {
        "architecture": "gpt_oss", "layers": 3, "attention_bias": True,
        "rope_scaling": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        "extra": {
            "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24,
            "swiglu_limit": 1.5,
        },
    },
    "gpt-oss-odd": {
        "architecture": "gpt_oss", "heads": 6, "kv_heads": 3, "head_dim": 24, "hidden": 72,
        "intermediate": 40, "extra": {"num_local_experts": 3, "num_experts_per_tok": 1},
    },
    "seed-oss": {"architecture": "seed_oss", "attention_bias": True},
    "smollm3": {"architecture": "smollm3", "layers": 5, "tie_word_embeddings": True},
    "smollm3-window": {
        "architecture": "smollm3", "layers": 4, "heads": 6, "kv_heads": 3, "hidden": 96,
        "extra": {
            "no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "sliding_window": 24,
        },
    },
    "ernie4.5": {"architecture": "ernie4_5", "extra": {"use_bias": True}},
    "exaone4": {
        "architecture": "exaone4",
        "extra": {"sliding_window": None, "layer_types": 2 * ["full_attention"]},
    },
    "exaone4-window": {
        "architecture": "exaone4", "layers": 5, "heads": 6, "kv_heads": 3, "hidden": 96,
        "extra": {"sliding_window": 24, "sliding_window_pattern": 4},
    },
    "olmo3": {
        "architecture": "olmo3", "layers": 5, "heads": 6, "kv_heads": 3, "hidden": 96,
        "extra": {
            "sliding_window": 24,
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 50_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50_000.0},
            },
        },
    },
    "granite": {"architecture": "granite", "attention_bias": True, "tie_word_embeddings": True},
    "phi3": {"architecture": "phi3", "extra": {"sliding_window": 24}},
    "phi4-mini": {
        "architecture": "phi3", "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 20,
        "hidden": 120, "intermediate": 72, "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "longrope", "partial_rotary_factor": 0.6,
            "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
            "long_factor": [2.0 + 0.3 * pair for pair in range(6)],
        },
        "extra": {"original_max_position_embeddings": 512},
    },
    "hunyuan": {
        "architecture": "hunyuan", "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
    },
    "hunyuan-odd": {
        "architecture": "hunyuan", "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 72, "intermediate": 40, "attention_bias": True,
    },
    "hunyuan-moe": {"architecture": "hunyuan_moe", "extra": {"moe_topk": [3, 1]}},
    "minimax-m2": {
        "architecture": "minimax_m2", "layers": 3,
        "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5},
    },
    "minimax-m2-odd": {
        "architecture": "minimax_m2", "heads": 6, "kv_heads": 3, "head_dim": 24, "hidden": 72,
        "intermediate": 40, "extra": {"num_local_experts": 5, "num_experts_per_tok": 1},
    },
    "mimo-v2": {"architecture": "mimo_v2", "layers": 7, "extra": {"sliding_window_size": 20}},
    "mimo-v2-odd": {
        "architecture": "mimo_v2", "layers": 5, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 72, "intermediate": 40, "attention_bias": True,
        "extra": {
            "n_routed_experts": 5, "num_experts_per_tok": 1, "v_head_dim": 10,
            "attention_value_scale": None, "sliding_window": 24,
            "layer_types": ["sliding_attention", *["full_attention"] * 3, "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", *["sparse"] * 3],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.5,
                },
                "sliding_attention": {
                    "rope_type": "default", "rope_theta": 5_000.0, "partial_rotary_factor": 0.25,
                },
            },
        },
    },
    "glm4-moe-lite": {
        "architecture": "glm4_moe_lite", "layers": 3,
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
            "moe_intermediate_size": 40, "n_group": 1, "topk_group": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
    },
    "glm5": {
        "architecture": "glm_moe_dsa", "layers": 3,
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
            "moe_intermediate_size": 40, "mlp_layer_types": ["dense", "sparse", "sparse"],
            "index_topk": 20, "index_n_heads": 16, "index_head_dim": 24,
        },
    },
    "glm5-shared-indexers": {
        "architecture": "glm_moe_dsa", "layers": 6,
        "extra": {
            "mlp_layer_types": ["dense"] * 6, "index_topk": 20, "index_n_heads": 16,
            "index_head_dim": 24, "index_topk_freq": 3, "index_skip_topk_offset": 2,
        },
    },
    "ernie4.5-moe": {
        "architecture": "ernie4_5_moe", "layers": 4,
        "extra": {"moe_layer_interval": 1, "moe_layer_end_index": 2},
    },
    "llama4": {
        "architecture": "llama4", "layers": 4, "rope_scaling": LLAMA3_ROPE_SCALING,
        "extra": {
            **LLAMA4, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96,
            "no_rope_layer_interval": 3,
        },
    },
    "llama4-odd": {
        "architecture": "llama4", "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 24,
        "hidden": 72, "intermediate": 40, "attention_bias": True, "tie_word_embeddings": True,
        "extra": {
            **LLAMA4, "num_experts_per_tok": 2, "use_qk_norm": False, "no_rope_layers": [1, 0, 1],
            "attn_temperature_tuning": False,
        },
    },
    "gemma2": {
        "architecture": "gemma2", "layers": 3, "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 20, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0,
            "query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh",
        },
    },
    "gemma3": {
        "architecture": "gemma3", "layers": 7, "head_dim": 24, "tie_word_embeddings": True,
        "extra": GEMMA3,
    },
    **GEMMA4,
    "deepseek2": {"architecture": "deepseek2", "rope_scaling": MLA_YARN},
    "deepseek2-whole-queries": {
        "architecture": "deepseek2", "heads": 3, "hidden": 96, "attention_bias": True,
        "extra": {
            "q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6, "v_head_dim": 20,
        },
    },
    "deepseek3": {"architecture": "deepseek3", "rope_scaling": MLA_YARN, "attention_bias": True},
    "deepseek3-half-rope": {
        "architecture": "deepseek3", "heads": 5, "hidden": 80,
        "extra": {"rope_interleave": False, "q_lora_rank": 20, "v_head_dim": 12},
    },
    "deepseek2-experts": {
        "architecture": "deepseek2", "layers": 3,
        "extra": {
            **DEEPSEEK_EXPERTS, "q_lora_rank": None, "topk_method": "group_limited_greedy",
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7,
        },
    },
    "deepseek2-one-group": {
        "architecture": "deepseek2",
        "extra": {**DEEPSEEK_EXPERTS, "num_experts_per_tok": 1, "first_k_dense_replace": 0},
    },
    "deepseek3-experts": {
        "architecture": "deepseek3", "layers": 3, "rope_scaling": MLA_YARN,
        "extra": {**DEEPSEEK_EXPERTS, "n_group": 4, "topk_group": 2},
    },
    "deepseek32": {
        "architecture": "deepseek32", "rope_scaling": MLA_YARN,
        "extra": {
            **DEEPSEEK_EXPERTS, "n_group": 4, "topk_group": 2,
            "index_topk": 20, "index_n_heads": 16, "index_head_dim": 24,
        },
    },
    "minimax_m3": {"architecture": "minimax_m3", "layers": 3},
    "minimax_m3-wide-index": MINIMAX_M3_WIDE,
    "deepseek4": {"architecture": "deepseek4", "layers": 4, "extra": {
        "layer_types": [
            "compressed_sparse_attention", "sliding_attention", "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        "compress_rates": {
            "compressed_sparse_attention": 4, "heavily_compressed_attention": 24,
        },
    }},
    "deepseek4-published-rates": {
        "architecture": "deepseek4", "layers": 4, "hidden": 72, "heads": 6, "head_dim": 24,
        "rope_scaling": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0},
        "extra": {
            "mlp_layer_types": ["moe", "hash_moe"] * 2, "n_routed_experts": 5,
            "num_experts_per_tok": 1, "o_groups": 3, "index_head_dim": 10, "hc_mult": 3,
            "scoring_func": "sigmoid",
        },
    },
    "deepseek3-one-group": {
        "architecture": "deepseek3",
        "extra": {
            **DEEPSEEK_EXPERTS, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1,
            "norm_topk_prob": False, "n_shared_experts": 2,
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=CHECKPOINTS, ids=str)
def checkpoint_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(checkpoint_name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(checkpoint_name)
    return make_tiny_checkpoint(folder, **CHECKPOINTS[checkpoint_name])


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> GreedyAnswers:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return GreedyAnswers(model, prompts(model.config.vocab_size), NEW_TOKENS)


@pytest.mark.sampled(20)
@pytest.mark.singles
@pytest.mark.parametrize(
    ("policy", "depth"),
    [
        ("mixed", 1),
        ("prefill_first", 0),
        pytest.param("mixed", 0, marks=pytest.mark.slow),
        pytest.param("prefill_first", 1, marks=pytest.mark.slow),
    ],
)
def test_greedy_tokens_equal_transformers_batched(checkpoint, expected, policy, depth):
    driver = CoreDriver(
        str(checkpoint), max_num_batched_tokens=48, max_num_seqs=8, scheduling_policy=policy,
        depth=depth,
    )  # fmt: skip
    got = driver.generate(prompts(driver.vocab_size), max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == expected.answers(got)


@pytest.mark.sampled(5)
@pytest.mark.rotated
def test_sampling_apart_from_the_forward_gives_the_same_tokens(checkpoint, expected):
    driver = CoreDriver(
        str(checkpoint), max_num_batched_tokens=48, max_num_seqs=8, depth=1, samples_later=True
    )
    got = driver.generate(prompts(driver.vocab_size), max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == expected.answers(got)


@pytest.mark.sampled(5)
@pytest.mark.rotated
def test_greedy_tokens_equal_transformers_alone(checkpoint, expected):
    """By two threads; whatever else is here is computed by one."""
    driver = CoreDriver(str(checkpoint), threads=2, max_num_batched_tokens=48, max_num_seqs=8)
    for number, prompt in enumerate(prompts(driver.vocab_size)):
        (got,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True)
        assert got == expected.to(number, got)


BLOCK_SIZES = (1, 32, 48, 256)


@pytest.mark.sampled(5)
@pytest.mark.rotated
def test_any_block_size_gives_the_same_tokens(checkpoint, checkpoint_name, expected):
    """Every fourth architecture has the same one."""
    turn = list(CHECKPOINTS).index(checkpoint_name) % len(BLOCK_SIZES)
    assert_tokens_of_blocks(checkpoint, expected, BLOCK_SIZES[turn])


@pytest.mark.slow
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_block_size_gives_the_same_tokens(checkpoint, expected, block_size):
    assert_tokens_of_blocks(checkpoint, expected, block_size)


def assert_tokens_of_blocks(checkpoint: Path, expected: GreedyAnswers, block_size: int) -> None:
    driver = CoreDriver(
        str(checkpoint), max_num_batched_tokens=48, max_num_seqs=8, block_size=block_size
    )
    asked = prompts(driver.vocab_size)
    for _ in range(2):  # the second time with what is cached
        got = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert got == expected.answers(got)


def scarce_blocks(checkpoint: Path) -> int:
    """Hardly more than one sequence of 192 tokens takes."""
    facts = ModelFacts.from_hf_config(json.loads((checkpoint / "config.json").read_text()))
    return kv_layout(facts, KvElement(4)).blocks_of_sequence(192, 16) + 2


@pytest.mark.sampled(5)
@pytest.mark.rotated
@pytest.mark.parametrize("depth", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_preempted_sequences_give_the_same_tokens(checkpoint, expected, depth):
    driver = CoreDriver(
        str(checkpoint), depth=depth, max_model_len=192, max_num_batched_tokens=48, max_num_seqs=8,
        num_kv_blocks=scarce_blocks(checkpoint), enable_prefix_caching=False,
    )  # fmt: skip
    got = driver.generate(prompts(driver.vocab_size), max_tokens=NEW_TOKENS, ignore_eos=True)
    assert got == expected.answers(got)
    assert driver.scheduler.stats().preemptions_total > 0


@pytest.mark.sampled(5)
@pytest.mark.rotated
def test_cached_prefix_gives_the_same_tokens(checkpoint, expected):
    driver = CoreDriver(str(checkpoint), max_num_batched_tokens=48, max_num_seqs=8)
    asked = prompts(driver.vocab_size)
    driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    again = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert again == expected.answers(again)
    assert driver.scheduler.stats().cached_tokens_total > 0


def test_longrope_beyond_what_was_trained_gives_transformers_tokens(tmp_path: Path) -> None:
    """Of contexts that all are longer: transformers changes factors as a sequence grows."""
    checkpoint = make_tiny_checkpoint(
        tmp_path,
        architecture="phi3",
        rope_scaling={"rope_type": "longrope", **{key: LONGROPE[key] for key in FACTORS}},
        extra={"original_max_position_embeddings": 64},
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    asked = [prompt for prompt in prompts(model.config.vocab_size) if len(prompt) > 64]
    driver = CoreDriver(str(checkpoint), max_num_batched_tokens=48, max_num_seqs=2)
    expected = [token_by_token(model, prompt, NEW_TOKENS) for prompt in asked]
    assert driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True) == expected


def test_ropes_that_the_first_phi3_checkpoints_call_su_are_longrope(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, **CHECKPOINTS["phi4-mini"])
    asked = prompts(CoreDriver(str(checkpoint)).vocab_size)[-2:]
    expected = CoreDriver(str(checkpoint)).generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    config = json.loads((checkpoint / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {**rope, "type": "su", "rope_type": None}
    (checkpoint / "config.json").write_text(json.dumps(config))
    driver = CoreDriver(str(checkpoint))
    assert driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True) == expected


def test_a_rope_that_scales_what_is_normed_behind_it_is_refused(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path, "hunyuan", rope_scaling=YARN)
    with pytest.raises(ModelError, match=r"'yarn' scales queries .* HunYuanDenseV1ForCausalLM"):
        CoreDriver(str(checkpoint))


def test_yarn_beyond_the_models_own_positions_gives_transformers_tokens(tmp_path: Path) -> None:
    stretched = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    checkpoint = make_tiny_checkpoint(tmp_path, architecture="qwen3", rope_scaling=stretched)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    assert model.config.max_position_embeddings == 512
    prompt = np.random.default_rng(3).integers(0, model.config.vocab_size, 600).tolist()
    driver = CoreDriver(str(checkpoint), max_model_len=1024, max_num_seqs=2, num_kv_blocks=80)
    assert driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True) == [
        token_by_token(model, prompt, NEW_TOKENS)
    ]
