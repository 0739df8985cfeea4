"""DeepSeek V4 beyond what every family is tried on: names as published, drafts, many groups of
layers, tensors to the byte, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.config import EngineOptions, build_config
from atom.errors import AtomError, ModelError
from atom.models.decoder.causal_lm import held_bytes
from atom.sizing import KvElement, ModelFacts, kv_layout, rotary_bytes
from atom.speculative_config import SpeculativeConfig
from tests.engine.integration.models.test_model_parity import CHECKPOINTS, NEW_TOKENS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.held_cache import counted_cache
from tests.support.models.greedy_oracle import GreedyAnswers
from tests.support.models.tiny_model import make_tiny_checkpoint

WEIGHTS = "model.safetensors"
KINDS = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
PROMPTS = [[5 + (7 * at + number) % 90 for at in range(40 + 61 * number)] for number in range(3)]


def made(folder: Path, **changes: Any) -> Path:
    settings = dict(CHECKPOINTS["deepseek4"])
    extra = {**settings.pop("extra"), **changes.pop("extra", {})}
    return make_tiny_checkpoint(folder, **{**settings, **changes}, extra=extra)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("deepseek-v4"))


def tokens_of(folder: Path, **options: Any) -> list[list[int]]:
    driver = CoreDriver(str(folder), max_num_batched_tokens=48, max_num_seqs=8, **options)
    return driver.generate(PROMPTS, max_tokens=NEW_TOKENS, ignore_eos=True)


def transformers_tokens(folder: Path, told: list[list[int]]) -> list[list[int]]:
    """Return the answers to the prompts; `told`: the engine's."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return GreedyAnswers(model, PROMPTS, NEW_TOKENS).answers(told)


def changed_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def published_name(name: str) -> str:
    """As deepseek-ai's repositories call what transformers' writer leaves under its own name."""
    name = name.removeprefix("model.").replace(".attn.norm.", ".attn.kv_norm.")
    for ours, theirs in (("embed_tokens.", "embed."), ("hc_head.hc_", "hc_head_")):
        name = name.replace(ours, theirs)
    return name


def publish(folder: Path) -> None:
    """Write config.json and names as published checkpoints have them, with a layer that predicts
    further tokens."""
    tensors = {published_name(key): each for key, each in load_file(folder / WEIGHTS).items()}
    tensors["mtp.0.attn.wq_a.weight"] = torch.zeros(2, 2)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    def older(config: dict[str, Any]) -> None:
        ratios = {**KINDS, "sliding_attention": 0}
        config["compress_ratios"] = [ratios[kind] for kind in config.pop("layer_types")] + [0]
        rates = config.pop("compress_rates")
        config["compress_rate_hca"] = rates["heavily_compressed_attention"]
        config["num_hash_layers"] = config.pop("mlp_layer_types").count("hash_moe")
        config.pop("partial_rotary_factor")
        yarn = config.pop("rope_parameters")["compress"]
        dropped = ("rope_theta", "partial_rotary_factor", "attention_factor")
        config["rope_scaling"] = {key: yarn[key] for key in yarn if key not in dropped}

    changed_config(folder, older)


def test_names_and_fields_as_published_are_read(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    folder = made(tmp_path, rope_scaling=yarn)
    told = tokens_of(folder)
    assert told == transformers_tokens(folder, told)
    publish(folder)
    assert transformers_tokens(folder, told) == told, "transformers reads them, too"
    assert tokens_of(folder) == told


def test_drafts_change_no_token(checkpoint: Path) -> None:
    """Entries that a draft completed are summed up again from the token that came instead."""
    prompts = [[5, 7, 9, 7, 9, 11] * 6 + [20 + number, 7, 9, 7] for number in range(4)]
    plain = CoreDriver(str(checkpoint), max_num_seqs=4)
    drafts = SpeculativeConfig(num_tokens=3, fewest_matched=1, most_matched=3, adaptive=False)
    drafting = CoreDriver(str(checkpoint), max_num_seqs=4, speculative=drafts)
    asked: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "allowed_token_ids": (7, 9, 11)}
    assert drafting.generate(prompts, **asked) == plain.generate(prompts, **asked)
    stats = drafting.scheduler.stats()
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total


def test_groups_of_few_layers_each_give_transformers_tokens(tmp_path: Path) -> None:
    """Of a context so long that windows are cut to what entries take of a block."""
    kinds = [*KINDS] * 6 + ["sliding_attention"]
    folder = made(
        tmp_path, layers=13, max_position_embeddings=1_000_000, extra={"layer_types": kinds}
    )
    facts = ModelFacts.from_hf_config(json.loads((folder / "config.json").read_text()))
    assert len(kv_layout(facts, KvElement(4)).groups) > 8
    told = tokens_of(folder, max_model_len=256, num_kv_blocks=400)
    assert told == transformers_tokens(folder, told)


@pytest.mark.parametrize("block_size", [1, 16, 48, 128])
def test_weights_and_cache_are_planned_to_the_byte(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, block_size: int
) -> None:
    held = counted_cache(monkeypatch)
    driver = CoreDriver(
        str(checkpoint), block_size=block_size, num_kv_blocks=512, max_model_len=256
    )
    facts = driver.config.model.facts
    layout = kv_layout(facts, KvElement(4), block_size=block_size)
    assert sum(held.values()) == 512 * block_size * layout.bytes_per_token
    model = driver.executor.runner._model  # type: ignore[attr-defined]
    # Of norms and correction, in float32 as is all else; sinks, too.
    assert held_bytes(model) == facts.weight_bytes() + rotary_bytes(facts, 256) + unit_norms(facts)


def unit_norms(facts: ModelFacts) -> int:
    """Norms of heads that no checkpoint has a weight of, and so no plan."""
    return facts.num_layers * facts.layers[0].attention.head_dim * 4


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another score": ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
    "more shared experts": ({"n_shared_experts": 2}, "n_shared_experts is 2; supported.*1"),
    "biases of experts": ({"mlp_bias": True}, "mlp_bias is True; supported.*False"),
    "a kind of layer": (
        {"layer_types": ["full_attention"] * 4},
        r"layer_types\[0\] is 'full_attention'; known of a DeepSeek V4: sliding_attention",
    ),
    "a rate": (
        {"layer_types": None, "compress_ratios": [0, 4, 128, 64]},
        r"compress_ratios\[3\] is '64'; known",
    ),
    "groups of heads": ({"o_groups": 3}, "o_groups 3 does not divide the 4 heads"),
}  # fmt: skip
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an fp8 cache": ({"kv_cache_dtype": "fp8"}, "for which fp8 has too few digits; use auto"),
    "online quantisation": (
        {"quantization": "fp8"}, "method online is not supported; .* no --quantization",
    ),
    "its own layers' drafts": (
        {"speculative": SpeculativeConfig(method="mtp", num_tokens=1)},
        "method mtp is not supported for DeepseekV4ForCausalLM",
    ),
    "reproducible": ({"reproducible": True}, "entries that sum up tokens; drop --reproducible"),
    "ranks beyond groups of heads": (
        {"tensor_parallel_size": 4}, r"groups of heads \(o_groups\) 2 is not divisible by 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_is_not_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    changes, message = CONFIGS[case]
    folder = made(tmp_path)
    changed_config(folder, lambda config: config.update(changes))
    with pytest.raises(AtomError, match=message):
        CoreDriver(str(folder))


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_that_does_not_go_with_it_is_refused_by_name(checkpoint: Path, case: str) -> None:
    options, message = OPTIONS[case]
    with pytest.raises(AtomError, match=message):
        build_config(EngineOptions.of(model=str(checkpoint), device="cpu", **options))


def test_a_table_of_experts_that_there_are_not_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path)
    tensors = load_file(folder / WEIGHTS)
    name = next(key for key in tensors if key.endswith("tid2eid"))
    tensors[name][3, 0] = 8
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="tid2eid names experts beyond the 8"):
        CoreDriver(str(folder))
