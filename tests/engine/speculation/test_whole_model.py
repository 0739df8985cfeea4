"""A whole model drafts for another one: answers stay, and a model that drafts for itself is right.

A model that drafts for itself computes its keys and values twice, so that every draft holds only if
its cache has each token: behind chunks, cached prefixes, preemptions, tiers, sleep and drafts that
were not tried. Pairs that cannot work are refused by name.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

from atom.config import EngineOptions, build_config
from atom.errors import ConfigError, ModelError
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.draft_checkpoints import WEIGHTS, make_eagle3, write_weights
from tests.support.models.gguf_model import write_gguf
from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

MOST = 4
OPTIONS: dict[str, Any] = {
    "max_model_len": 128, "max_num_batched_tokens": 64, "num_kv_blocks": 400, "max_num_seqs": 6,
}  # fmt: skip
TIER = {"kv_offloading_size": 0.01, "kv_offload_min_tokens": 0}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a step behind, in chunks": {"depth": 1, "max_num_batched_tokens": 24},
    "preempted": {"depth": 1, "num_kv_blocks": 12},
    "few blocks, with a tier": {"num_kv_blocks": 20, **TIER},
    "no prefix cache": {"enable_prefix_caching": False},
    "large blocks": {"block_size": 32},
}
# A model's family, and that of one that drafts for it: in kinds of layers, heads and norms.
PAIRS = {
    "dense": ("qwen3", "llama"),
    "latents": ("deepseek3", "qwen2"),
    "experts": ("mixtral", "qwen3_moe"),
    "states": ("qwen3_5", "qwen3"),
    "windows": ("gemma3", "gemma3"),
    "windows of the model alone": ("gpt_oss", "llama"),
    "windows of the draft model alone": ("qwen3", "gpt_oss"),
}


def asked_of(draft: Path, **options: Any) -> SpeculativeConfig:
    given = {"num_tokens": MOST, "adaptive": False, **options}
    return SpeculativeConfig(method="draft_model", draft_model=str(draft), **given)


def some_asks(seed: int, vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of which some begin alike, greedy and drawn."""
    draw = random.Random(seed)
    beginning = [draw.randrange(3, vocab_size) for _ in range(40)]
    return [
        (
            beginning[: draw.choice([0, 18, 40])]
            + [draw.randrange(3, vocab_size) for _ in range(draw.randrange(1, 30))],
            SamplingParams(
                temperature=draw.choice([0.0, 0.8]), seed=number, ignore_eos=True,
                max_tokens=draw.randrange(1, 50),
            ),
        )
        for number in range(8)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen3", seed=5)


def answers_twice(engine: CoreDriver) -> list[list[int]]:
    """Return the answers of two rounds, of which the second finds prefixes of the first."""
    asks = some_asks(3, engine.vocab_size)
    return engine.generate_each(asks) + engine.generate_each(asks[::-1])


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_drafts_for_itself_is_always_right(folder: Path, way: str) -> None:
    plain = CoreDriver(str(folder), **OPTIONS)
    drafting = CoreDriver(str(folder), speculative=asked_of(folder), **{**OPTIONS, **WAYS[way]})
    assert answers_twice(drafting) == answers_twice(plain)
    stats = drafting.scheduler.stats()
    assert stats.accepted_tokens_total == stats.draft_tokens_total > 200
    if "tier" in way:
        assert stats.offload_load_bytes_total > 0
    if "preempted" in way:
        assert stats.preemptions_total > 0


FAMILIES = get_args(Architecture)
# Of these, the ones whose layers keep something else than keys and values, by their names.
KEEP_OTHERS = (
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "granite_hybrid", "nemotron_h", "kimi_linear"),
    *("lfm2", "lfm2_moe", "deepseek2", "deepseek3", "deepseek32", "deepseek4", "minimax_m3"),
    *("glm4_moe_lite", "glm_moe_dsa"),
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_drafts_for_itself_or_is_refused_by_name(
    tmp_path: Path, family: Architecture
) -> None:
    folder = make_tiny_checkpoint(tmp_path, family, seed=5)
    if family in KEEP_OTHERS:
        assert "grouped-query attention" in refusal(folder, folder)
        return
    drafting = CoreDriver(str(folder), speculative=asked_of(folder), **OPTIONS)
    asks = some_asks(3, drafting.vocab_size)
    assert drafting.generate_each(asks) == CoreDriver(str(folder), **OPTIONS).generate_each(asks)
    stats = drafting.scheduler.stats()
    assert stats.accepted_tokens_total == stats.draft_tokens_total > 100


@pytest.mark.parametrize("kind", PAIRS)
def test_answers_are_those_without_a_model_of_another_kind(tmp_path: Path, kind: str) -> None:
    own, others = PAIRS[kind]
    folder = make_tiny_checkpoint(tmp_path / "model", own, seed=5)
    heads = {"head_dim": 48, "kv_heads": 1}  # of other sizes, also where blocks have windows
    draft = make_tiny_checkpoint(tmp_path / "draft", others, seed=6, layers=3, **heads)
    options = {**OPTIONS, "depth": 1, "max_num_batched_tokens": 24}
    plain = CoreDriver(str(folder), **options)
    drafting = CoreDriver(str(folder), speculative=asked_of(draft), **options)
    assert answers_twice(drafting) == answers_twice(plain)
    assert drafting.scheduler.stats().draft_tokens_total > 200


@pytest.mark.parametrize("form", ["gguf", "fp8-blocks", "awq"])
def test_a_draft_model_has_its_own_form(tmp_path: Path, form: str) -> None:
    """A quantised model drafts for the plain one of the same values."""
    if form == "gguf":
        plain = make_tiny_checkpoint(tmp_path / "plain", "llama", seed=5)
        draft = write_gguf(plain, tmp_path / "model.gguf")
    else:
        draft, plain = make_quantised_checkpoint(tmp_path, LAYOUTS[form])
    drafting = CoreDriver(str(plain), speculative=asked_of(draft), **OPTIONS)
    assert answers_twice(drafting) == answers_twice(CoreDriver(str(plain), **OPTIONS))
    stats = drafting.scheduler.stats()
    assert stats.accepted_tokens_total > 0.9 * stats.draft_tokens_total > 180


@pytest.mark.parametrize("padded", ["model", "draft"])
def test_vocabularies_may_be_padded_differently(tmp_path: Path, folder: Path, padded: str) -> None:
    """Ids that pad one of them are guessed wrong, or not at all, and change nothing else."""
    tensors = load_file(folder / WEIGHTS)
    size = len(tensors["lm_head.weight"])
    larger = changed(tmp_path / "padded", folder, vocab_size=size + 64)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = torch.cat((tensors[name], torch.zeros(64, tensors[name].shape[1])))
    write_weights(larger, tensors)
    model, draft = (larger, folder) if padded == "model" else (folder, larger)
    plain, drafting = (
        CoreDriver(str(model), speculative=asked, **OPTIONS) for asked in (None, asked_of(draft))
    )
    likeliest = [
        (prompt, SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
        for prompt, _ in some_asks(3, size)
    ]
    assert drafting.generate_each(likeliest) == plain.generate_each(likeliest)
    stats = drafting.scheduler.stats()
    assert stats.accepted_tokens_total == stats.draft_tokens_total > 180
    # Drawn tokens are padding at times, since the weights are random, and a client may write any.
    asks = some_asks(4, model_size := size + 64 * (padded == "model"))
    asks.append(([model_size - 1, size - 1, 7] * 5, asks[0][1]))
    assert drafting.generate_each(asks) == plain.generate_each(asks)


@pytest.mark.parametrize("level", [1, 2])
def test_a_model_drafts_as_before_after_sleep(folder: Path, level: int) -> None:
    engine = CoreDriver(
        str(folder), speculative=asked_of(folder), enable_sleep_mode=True, **OPTIONS
    )
    before = answers_twice(engine)
    runner: Any = engine.executor.runner  # type: ignore[attr-defined]
    engine.scheduler.blocks.reset_prefix_cache()
    runner.sleep(level)
    runner.wake_up()
    assert answers_twice(engine) == before
    stats = engine.scheduler.stats()
    assert stats.accepted_tokens_total == stats.draft_tokens_total > 200


def test_new_weights_of_the_model_leave_the_draft_models(tmp_path: Path, folder: Path) -> None:
    other = make_tiny_checkpoint(tmp_path, "qwen3", seed=8)
    engine = CoreDriver(str(folder), speculative=asked_of(other), enable_sleep_mode=True, **OPTIONS)
    runner: Any = engine.executor.runner  # type: ignore[attr-defined]
    runner.check_weights(str(other))
    runner.update_weights(str(other))
    assert answers_twice(engine) == answers_twice(CoreDriver(str(other), **OPTIONS))
    stats = engine.scheduler.stats()
    assert stats.accepted_tokens_total == stats.draft_tokens_total > 200


def changed(folder: Path, source: Path, **fields: Any) -> Path:
    """Copy a checkpoint with other fields in its config.json."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def refusal(folder: Path, draft: Path, **options: Any) -> str:
    with pytest.raises((ConfigError, ModelError)) as error:
        build_config(EngineOptions.of(model=str(folder), speculative=asked_of(draft), **options))
    return str(error.value)


def test_pairs_that_cannot_work_are_refused_by_name(tmp_path: Path, folder: Path) -> None:
    larger = changed(tmp_path / "larger", folder, vocab_size=4000)
    said = refusal(folder, larger)
    assert str(larger) in said
    assert "vocab_size 4000 is not the model's" in said
    assert "same vocabulary" in said
    eagle = tmp_path / "eagle3"
    make_eagle3(eagle, folder, draft_vocabulary=50)
    assert "use method eagle3" in refusal(folder, eagle)
    entries = make_tiny_checkpoint(tmp_path / "entries", "deepseek4")
    assert "compressed entries" in refusal(entries, folder)


def test_tokenizers_with_other_ids_are_refused_by_name(tmp_path: Path, folder: Path) -> None:
    other = changed(tmp_path / "other", folder)
    document = json.loads((other / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    one, another = sorted(vocabulary, key=vocabulary.get)[40:42]
    vocabulary[one], vocabulary[another] = vocabulary[another], vocabulary[one]
    (other / "tokenizer.json").write_text(json.dumps(document))
    said = refusal(folder, other)
    assert f"the tokenizers differ in 2 ids: id {vocabulary[another]} is" in said
    assert "same tokenizer" in said
    by_score = {"model": {"vocab": [["a", -1.0], ["b", -2.5]]}, "added_tokens": []}
    (other / "tokenizer.json").write_text(json.dumps(by_score))
    assert "id 0 is 'a' in " in refusal(folder, other)
    (other / "tokenizer.json").write_text('{"model": {"vocab": 7}}')
    assert "tokenizer.json: damaged" in refusal(folder, other)
    (other / "tokenizer.json").unlink()
    assert build_config(EngineOptions.of(model=str(folder), speculative=asked_of(other))).draft
