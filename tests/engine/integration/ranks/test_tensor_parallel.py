"""Ranks that share a model say what one rank says: every family, and every way to choose tokens.

One device's tokens are the measure, which other tests hold against transformers. Ranks are
processes over gloo, started once for all models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom.config import Config, EngineOptions, build_config
from atom.errors import ConfigError
from atom.models.registry import support_model_arch_dict
from atom.sampling_params import SamplingParams
from atom.sizing.families.encoder_rows import ENCODERS
from atom.sizing.families.fallback import FALLBACKS
from atom.speculative_config import SpeculativeConfig
from atom.structured_outputs import StructuredOutputsParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.draft_checkpoints import (
    add_mimo_mtp_layers,
    add_mtp_layer,
    make_draft_model,
    make_eagle3,
)
from tests.support.models.gemma4_checkpoints import GEMMA4_EXPERTS, GEMMA4_SMALL
from tests.support.models.quantised_checkpoint import (
    GPT_OSS_LAYOUT,
    LAYOUTS,
    make_quantised_checkpoint,
)
from tests.support.models.tiny_model import (
    LLAMA3_ROPE_SCALING,
    Architecture,
    class_name,
    make_tiny_checkpoint,
)
from tests.support.ranks.rank_group import RankGroup

OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 80, "max_num_seqs": 8, "max_num_batched_tokens": 48, "max_model_len": 256,
}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MLA_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "moe_intermediate_size": 40, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip
# A vocabulary whose halves are whole groups of the draw's race, unless it says otherwise.
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {"architecture": "qwen3"},
    "dense, a head of its own that is tied": {
        "architecture": "qwen3", "tie_word_embeddings": True, "shards": 2,
    },
    "biases and windows": {
        "architecture": "qwen2", "layers": 3,
        "extra": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    },
    "experts": {"architecture": "qwen3_moe", "extra": EXPERTS},
    "a shared expert behind a gate": {
        "architecture": "qwen2_moe",
        "extra": {**EXPERTS, "shared_expert_intermediate_size": 40},
    },
    "states, gated heads": {
        "architecture": "qwen3_next", "layers": 4,
        "extra": {
            **EXPERTS, "shared_expert_intermediate_size": 40, "linear_num_value_heads": 6,
            "linear_conv_kernel_dim": 3,
        },
    },
    "short convolutions": {"architecture": "lfm2", "layers": 3, "extra": {"conv_bias": True}},
    "short convolutions, experts": {"architecture": "lfm2_moe", "layers": 3},
    "Mamba-2, a group on both ranks": {"architecture": "granite_hybrid", "layers": 3},
    "Mamba-2, groups of each rank": {"architecture": "nemotron_h"},
    "delta attention by channel, latents": {"architecture": "kimi_linear", "layers": 3},
    "states, a matrix for each part": {
        "architecture": "qwen3_5", "layers": 4, "extra": {"linear_num_value_heads": 6},
    },
    "states, a matrix for each part, experts": {
        "architecture": "qwen3_5_moe", "layers": 4,
        "extra": {**EXPERTS, "shared_expert_intermediate_size": 40},
    },
    "sinks, windows, biases of experts": {
        "architecture": "gpt_oss", "attention_bias": True,
        "extra": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24},
    },
    "norms behind attention and MLP": {
        "architecture": "gemma2", "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 20, "final_logit_softcapping": 8.0,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    },
    "norms of heads, windows of some layers": {
        "architecture": "gemma3", "layers": 3, "tie_word_embeddings": True,
        "extra": {
            "sliding_window": 24, "layer_types": [*2 * ["sliding_attention"], "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
            },
        },
    },
    "scaled rope": {"architecture": "llama", "rope_scaling": LLAMA3_ROPE_SCALING},
    "a window in every layer": {"architecture": "mistral", "extra": {"sliding_window": 24}},
    "experts without a shared one, windows": {
        "architecture": "mixtral",
        "extra": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24},
    },
    "chunks, experts of weighed inputs": {
        "architecture": "llama4", "layers": 4,
        "extra": {
            "num_local_experts": 4, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96,
            "attention_chunk_size": 20, "floor_scale": 16, "no_rope_layer_interval": 3,
        },
    },
    "groups of experts, a part of each head rotated": {
        "architecture": "glm4_moe", "layers": 3, "attention_bias": True,
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
            "n_group": 4, "topk_group": 2, "use_qk_norm": True, "n_shared_experts": 2,
        },
    },
    "biases of q, k and v alone": {"architecture": "seed_oss", "attention_bias": True},
    "layers without positions": {"architecture": "smollm3", "layers": 4},
    "a rope of neighbours": {"architecture": "ernie4_5", "extra": {"use_bias": True}},
    "norms behind, layers without positions": {
        "architecture": "exaone4", "layers": 4, "extra": {"sliding_window": 24},
    },
    "norms of all heads": {
        "architecture": "olmo3", "layers": 4, "extra": {"sliding_window": 24},
    },
    "norms of all heads, experts": {"architecture": "minimax_m2"},
    "spans of tokens by KV head, a clamped shared expert": {
        "architecture": "minimax_m3", "layers": 3,
    },
    "narrow values, and caches of unlike sizes": {
        "architecture": "mimo_v2", "layers": 6, "extra": {"sliding_window": 24},
    },
    "keys that are values, heads of two sizes, experts beside an MLP": GEMMA4_EXPERTS,
    "inputs of each layer, keys of other layers": GEMMA4_SMALL,
    "windows beside entries, streams, experts by token": {
        "architecture": "deepseek4", "layers": 4,
        "extra": {
            "layer_types": [
                "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {
                "compressed_sparse_attention": 4, "heavily_compressed_attention": 24,
            },
        },
    },
    "indexers for several layers": {
        "architecture": "glm_moe_dsa", "layers": 4,
        "extra": {"index_topk": 20, "index_n_heads": 16, "index_head_dim": 24,
                  "index_topk_freq": 3, "mlp_layer_types": ["dense"] * 4},
    },
    "scales": {"architecture": "granite"},
    "norms of rotated heads": {"architecture": "hunyuan"},
    "norms of rotated heads, experts": {"architecture": "hunyuan_moe"},
    "fused matrices, a part of each head rotated": {
        "architecture": "phi3",
        "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5},
    },
    "latent attention of other sizes": {
        "architecture": "glm4_moe_lite",
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
            "moe_intermediate_size": 40, "mlp_layer_types": ["dense", "sparse"],
        },
    },
    "corrected softmax, shared experts": {"architecture": "ernie4_5_moe"},
    "an indexer of neighbours": {
        "architecture": "glm_moe_dsa",
        "extra": {
            **MLA_EXPERTS, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"],
            "index_topk": 20, "index_n_heads": 16, "index_head_dim": 24,
        },
    },
    "latent attention": {"architecture": "deepseek2", "extra": {"q_lora_rank": None}},
    "latent attention with experts": {"architecture": "deepseek3", "extra": MLA_EXPERTS},
    "an indexer": {
        "architecture": "deepseek32",
        "extra": {**MLA_EXPERTS, "index_topk": 20, "index_n_heads": 16, "index_head_dim": 24},
    },
}  # fmt: skip
PROMPT_LENGTHS = (1, 15, 16, 40, 100)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _checkpoint(tmp_path_factory.mktemp("dense"), "dense")


def _checkpoint(folder: Path, family: str, vocab_size: int = 384) -> str:
    settings = dict(FAMILIES[family])
    extra = {"vocab_size": vocab_size, **settings.pop("extra", {})}
    return str(make_tiny_checkpoint(folder, **settings, extra=extra))


def _prompts(*lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, 300, size=length).tolist() for length in lengths]


def test_no_architecture_is_left_out() -> None:
    tested = {settings["architecture"] for settings in FAMILIES.values()}
    generating = support_model_arch_dict.keys() - ENCODERS.keys()  # encoders: test_encoders.py
    generating -= FALLBACKS.keys()  # of one rank: test_fallback.py
    assert {class_name(name) for name in tested} == generating


@pytest.mark.sampled(9)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_two_ranks_draw_what_one_does(family: str, pair: RankGroup, tmp_path: Path) -> None:
    model = _checkpoint(tmp_path, family)
    prompts = _prompts(*PROMPT_LENGTHS)
    drawing = {"temperature": 1.0, "seed": 3, "max_tokens": 6, "ignore_eos": True}
    alone = CoreDriver(model, **OPTIONS)
    together = pair.driver(model, **OPTIONS)
    greedy = together.generate(prompts, max_tokens=6, ignore_eos=True)
    drawn = together.generate(prompts, **drawing)
    together.close()
    assert greedy == alone.generate(prompts, max_tokens=6, ignore_eos=True)
    assert drawn == alone.generate(prompts, **drawing)
    assert together.report.weights_bytes < alone.report.weights_bytes


def test_ranks_go_on_from_the_same_checkpoints(pair: RankGroup, tmp_path: Path) -> None:
    model = _checkpoint(tmp_path, "states, gated heads")
    prompts = _prompts(100, 90)
    together = pair.driver(model, **OPTIONS)
    first = together.generate(prompts, max_tokens=6, ignore_eos=True)
    again = together.generate(prompts, max_tokens=6, ignore_eos=True)
    together.close()
    assert first == again
    assert together.scheduler.stats().cached_tokens_total > 0


@pytest.mark.parametrize(
    "family",
    [
        "experts", "a shared expert behind a gate", "sinks, windows, biases of experts",
        "chunks, experts of weighed inputs", "windows beside entries, streams, experts by token",
    ],
)  # fmt: skip
def test_ranks_with_whole_experts_each(family: str, pair: RankGroup, tmp_path: Path) -> None:
    model = _checkpoint(tmp_path, family)
    prompts = _prompts(1, 40, 100)
    alone = CoreDriver(model, **OPTIONS)
    together = pair.driver(model, enable_expert_parallel=True, **OPTIONS)
    found = together.generate(prompts, max_tokens=6, ignore_eos=True)
    together.close()
    assert found == alone.generate(prompts, max_tokens=6, ignore_eos=True)
    assert together.report.weights_bytes < alone.report.weights_bytes


def test_rows_that_ask_for_more_than_a_draw(pair: RankGroup, dense: str) -> None:
    """Filters, penalties, bans, log-probabilities, of tokens and of prompts: by all logits."""
    asks: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_k": 7, "seed": 1},
        {"temperature": 0.9, "top_p": 0.7, "min_p": 0.02, "seed": 2},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "logit_bias": {9: 4.0}},
        {"logprobs": 3, "prompt_logprobs": 2},
        {"temperature": 1.1, "seed": 4},
    ]
    requests = [
        (prompt, SamplingParams(**{"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **ask}))
        for prompt, ask in zip(_prompts(30, 9, 60, 25, 5), asks, strict=True)
    ]
    alone = CoreDriver(dense, **OPTIONS)
    together = pair.driver(dense, **OPTIONS)
    found = together.generate_each(requests)
    together.close()
    assert found == alone.generate_each(requests)
    assert together.logprobs[3]
    assert together.prompt_logprobs[3]
    assert _numbers(together) == pytest.approx(_numbers(alone), abs=1e-4)


@pytest.mark.parametrize("way", [{}, {"depth": 1}], ids=["at once", "a step behind"])
@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_ranks_verify_the_same_drafts(
    pair: RankGroup, dense: str, way: dict[str, Any], method: str
) -> None:
    drafts = SpeculativeConfig(
        method=method, num_tokens=4, fewest_matched=1, most_matched=3, adaptive=False
    )
    asks: list[dict[str, Any]] = [
        {}, {"temperature": 0.7, "seed": 1}, {"temperature": 0.8, "top_k": 5, "seed": 2},
        {"repetition_penalty": 1.2}, {"logprobs": 2},
    ]  # fmt: skip
    requests = [
        ([5 + n, 7, 9, 7, 9] * 6, SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **ask}))
        for n, ask in enumerate(asks)
    ]
    alone = CoreDriver(dense, **OPTIONS)
    together = pair.driver(dense, speculative=drafts, **OPTIONS, **way)
    found = together.generate_each(requests)
    accepted = together.scheduler.stats().accepted_tokens_total
    together.close()
    assert found == alone.generate_each(requests)
    assert accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "states, gated heads",
        "Mamba-2, a group on both ranks",
        "delta attention by channel, latents",
    ],
)
def test_ranks_keep_the_inputs_of_their_heads_drafts(
    pair: RankGroup, kind: str, tmp_path: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path, **FAMILIES[kind], seed=3)
    drafts = SpeculativeConfig(num_tokens=4, fewest_matched=1, most_matched=3, adaptive=False)
    requests = [
        ([5 + n, 7, 9, 7, 9] * 6, SamplingParams(
            temperature=n / 4, seed=n, max_tokens=24, allowed_token_ids=(7, 9, 11),
        ))
        for n in range(4)
    ]  # fmt: skip
    alone = CoreDriver(str(folder), **OPTIONS)
    together = pair.driver(str(folder), speculative=drafts, **OPTIONS, depth=1)
    found = together.generate_each(requests)
    accepted = together.scheduler.stats().accepted_tokens_total
    together.close()
    assert found == alone.generate_each(requests)
    assert accepted > 0


@pytest.mark.parametrize("drafting", ["mtp", "mtp in a window", "eagle3", "draft_model"])
def test_ranks_draft_with_layers_they_share(pair: RankGroup, drafting: str, tmp_path: Path) -> None:
    folder, draft = tmp_path / "model", None
    if drafting == "mtp":
        make_tiny_checkpoint(folder, "glm4_moe", seed=3)
        add_mtp_layer(folder)
    elif drafting == "mtp in a window":
        kind = FAMILIES["narrow values, and caches of unlike sizes"]
        make_tiny_checkpoint(folder, **kind, seed=3)
        add_mimo_mtp_layers(folder)
    elif drafting == "draft_model":
        make_tiny_checkpoint(folder, "qwen3", layers=3, seed=3)
        draft = str(make_draft_model(tmp_path / "draft", folder, layers=2))
    else:
        make_tiny_checkpoint(folder, "llama", layers=7, seed=3)
        draft = str(tmp_path / "eagle3")
        make_eagle3(Path(draft), folder, draft_vocabulary=200)
    method = drafting.partition(" ")[0]
    asked = SpeculativeConfig(method=method, draft_model=draft, num_tokens=3, adaptive=False)
    requests = [
        ([5 + n, 7, 9, 7, 9] * 6, SamplingParams(temperature=heat, seed=n, max_tokens=20))
        for n, heat in enumerate((0.0, 0.7, 1.2))
    ]
    alone = CoreDriver(str(folder), **OPTIONS)
    together = pair.driver(str(folder), speculative=asked, depth=1, **OPTIONS)
    found = together.generate_each(requests)
    accepted = together.scheduler.stats().accepted_tokens_total
    together.close()
    assert found == alone.generate_each(requests)
    assert accepted > 0


def _numbers(engine: CoreDriver) -> list[float]:
    """Tokens, ranks and log-probabilities of everything that was told."""
    entries = [entry for row in engine.logprobs + engine.prompt_logprobs for entry in row]
    return [
        number
        for entry in entries
        for pair in ((entry.token_id, entry.logprob), (entry.rank, 0.0), *entry.top_logprobs)
        for number in pair
    ]


def test_a_vocabulary_whose_halves_split_a_group_of_the_race(
    pair: RankGroup, tmp_path: Path
) -> None:
    model = _checkpoint(tmp_path, "dense", vocab_size=330)
    prompts = _prompts(20, 33)
    drawing = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "ignore_eos": True}
    alone = CoreDriver(model, **OPTIONS)
    together = pair.driver(model, **OPTIONS)
    found = together.generate(prompts, **drawing)
    greedy = together.generate(prompts, max_tokens=12)
    together.close()
    assert found == alone.generate(prompts, **drawing)
    assert greedy == alone.generate(prompts, max_tokens=12)


def test_preempted_rows_and_shared_prefixes(pair: RankGroup, dense: str) -> None:
    """Followers' slots and tables are what the scheduler's are, also when rows leave and return."""
    options = {**OPTIONS, "num_kv_blocks": 18}
    prefix = _prompts(64)[0]
    prompts = [prefix + tail for tail in _prompts(3, 5, 20, 33)]
    alone = CoreDriver(dense, **options)
    together = pair.driver(dense, **options)
    found = [together.generate(prompts, max_tokens=40, ignore_eos=True) for _ in range(2)]
    stats = together.scheduler.stats()
    together.close()
    expected = alone.generate(prompts, max_tokens=40, ignore_eos=True)
    assert found == [expected, expected]
    assert stats.preemptions_total > 0
    assert stats.cached_tokens_total > 0


def test_the_rank_with_the_least_room_decides_how_many_blocks_there_are(
    pair: RankGroup, dense: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(config: Config) -> bytes:
        """What the other rank is told: it has room for half as many."""
        return replace(config, cache=replace(config.cache, num_kv_blocks=40)).to_json()

    monkeypatch.setattr(pair, "line", line)
    prompts = _prompts(20, 33)
    together = pair.driver(dense, **OPTIONS)
    found = together.generate(prompts, max_tokens=6)
    together.close()
    assert (together.report.num_blocks, together.report.limited_by) == (40, "memory")
    assert together.report.kv_tokens == 40 * together.report.block_size
    assert found == CoreDriver(dense, **OPTIONS).generate(prompts, max_tokens=6)


def test_guided_rows_and_aborted_ones(
    pair: RankGroup, dense: str, request: pytest.FixtureRequest
) -> None:
    guided = SamplingParams(
        temperature=0.0, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[ab]{4}c")
    )
    plain = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = _prompts(20, 30)
    alone = CoreDriver(dense, **OPTIONS)
    together = pair.driver(dense, **OPTIONS)
    for engine in (alone, together):
        request.addfinalizer(engine.guided.close)
    abandoned = together.add(prompts[0], plain)
    for _ in range(3):
        together.step()
    together.pipeline.abort([abandoned])
    requests = [(prompts[0], guided), (prompts[1], plain)]
    found = together.generate_each(requests)
    together.close()
    assert found == alone.generate_each(requests)


@pytest.mark.parametrize(
    ("layout", "architecture"),
    [
        ("fp8-tensor", "qwen3"),
        ("compressed-int4-zeros", "qwen3"),
        ("awq", "llama"),
        ("quark-mxfp4", "llama"),
        ("gpt-oss", "gpt_oss"),
    ],
)
def test_ranks_read_their_part_of_quantised_matrices(
    layout: str, architecture: Architecture, pair: RankGroup, tmp_path: Path
) -> None:
    stacked = {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 24}
    is_stacked = architecture == "gpt_oss"
    folder, _ = make_quantised_checkpoint(
        tmp_path,
        GPT_OSS_LAYOUT if is_stacked else LAYOUTS[layout],
        architecture,
        leave="self_attn" if is_stacked else None,
        extra={"vocab_size": 384, **(stacked if is_stacked else {})},
    )
    prompts = _prompts(15, 40)
    alone = CoreDriver(str(folder), **OPTIONS)
    together = pair.driver(str(folder), **OPTIONS)
    found = together.generate(prompts, max_tokens=6, ignore_eos=True)
    together.close()
    assert found == alone.generate(prompts, max_tokens=6, ignore_eos=True)


def test_a_size_that_cuts_blocks_is_refused_with_those_that_do_not(tmp_path: Path) -> None:
    folder, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["fp8-blocks"])
    options = EngineOptions.of(model=str(folder), tensor_parallel_size=2)
    with pytest.raises(
        ConfigError,
        match=r"tensor_parallel_size 2: 1/2 of self_attn\.q_proj is 64 wide, which is no multiple "
        r"of the quantisation's 128.* sizes that divide this model: 1$",
    ):
        build_config(options)
