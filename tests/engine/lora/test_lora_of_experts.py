"""Adapters of experts' matrices are served as PEFT computes them, in both forms that it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from atom.errors import AdapterError, ConfigError
from atom.lora_config import LoraConfig
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.sizing.overheads import LoraRoom, lora_bytes
from atom.sizing.weights import Sharding
from tests.engine.integration.ranks.test_tensor_parallel import EXPERTS
from tests.engine.lora.test_lora_parity import (
    NEW_TOKENS,
    OPTIONS,
    lora_of,
    oracle,
    prompts,
    request_of,
)
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.lora_adapter import adapted_model, make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup

BOTH = ["experts.gate_up_proj", "experts.down_proj"]
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"architecture": "qwen3_moe", "extra": EXPERTS},
    "mixtral": {"architecture": "mixtral"},
    "a shared expert behind a gate": {
        "architecture": "qwen2_moe",
        "extra": {**EXPERTS, "shared_expert_intermediate_size": 40},
    },
    "gpt_oss, rows of gate and up in turn, biases": {
        "architecture": "gpt_oss", "attention_bias": True,
        "extra": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24},
    },
}  # fmt: skip
ADAPTERS: dict[str, dict[str, Any]] = {
    "both products": {"target_parameters": BOTH},
    "one, and attention": {
        "target_modules": ["q_proj"], "target_parameters": BOTH[:1], "rank": 7,
        "use_rslora": True, "seed": 1,
    },
    "the other": {"target_parameters": BOTH[1:], "rank": 3, "seed": 2},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "in one batch": {},
    "chunks of few tokens": {"max_num_batched_tokens": 16},
    "blocks for few rows, so that rows are preempted": {"num_kv_blocks": 18},
    "no prefix is cached": {"enable_prefix_caching": False},
    "the reference's operations": {"backend": "torch_ref"},
}
PARAMS = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)


def of_experts(adapters: list[Path], **room: int) -> LoraConfig:
    lora = lora_of(adapters, **room)
    return LoraConfig(
        modules=lora.modules,
        max_loras=lora.max_loras,
        max_rank=lora.max_rank,
        max_cpu_loras=lora.max_cpu_loras,
        experts=True,
    )


def make_adapters(folder: Path, checkpoint: Path) -> list[Path]:
    return [
        make_adapter(folder / str(number), checkpoint, **{"target_modules": [], **asked})
        for number, asked in enumerate(ADAPTERS.values(), 1)
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_a_mixed_batch_are_peft_s(family: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **FAMILIES[family])
    adapters = make_adapters(tmp_path, checkpoint)
    engine = CoreDriver(str(checkpoint), lora=of_experts(adapters), **OPTIONS)
    model = engine.executor.runner._model  # type: ignore[attr-defined]
    taken = sum(each.nbytes for name, each in model.named_parameters() if ".lora_" in name)
    room = LoraRoom(slots=3, rank=8, experts=True)
    assert lora_bytes(engine.config.model.facts, room, 4, Sharding()) == taken

    asked = [
        (prompt, PARAMS, request_of(number))
        for number in range(len(adapters) + 1)
        for prompt in prompts(engine.vocab_size)
    ]
    answers = engine.generate_each(asked)
    found = [[entry.logprob for entry in entries] for entries in engine.logprobs]
    models = [adapted_model(checkpoint, adapter) for adapter in (None, *adapters)]
    for (prompt, _, lora), told, logprobs in zip(asked, answers, found, strict=True):
        tokens, wanted = oracle(models[lora.lora_int_id if lora else 0], prompt, told)
        assert told == tokens
        assert logprobs == pytest.approx(wanted, abs=2e-4)
    of_one = [str(found[first : first + 4]) for first in range(0, len(found), 4)]
    assert len(set(of_one)) == len(adapters) + 1, "an adapter that changes nothing proves nothing"


@dataclass(frozen=True)
class Served:
    """A checkpoint with adapters, requests to them and none, and what each gets alone.

    cached_tokens: that the engine which answered them one by one had from its prefix cache."""

    checkpoint: Path
    adapters: list[Path]
    asked: list[tuple[list[int], SamplingParams, LoRARequest | None]]
    alone: list[list[int]]
    cached_tokens: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("experts")
    checkpoint = make_tiny_checkpoint(folder / "model", **FAMILIES["qwen3_moe"])
    adapters = make_adapters(folder, checkpoint)
    engine = CoreDriver(str(checkpoint), lora=of_experts(adapters), **OPTIONS)
    asked = [
        (prompt, PARAMS, request_of(number % 4))
        for number in range(8)
        for prompt in prompts(engine.vocab_size)
    ]
    alone = [engine.generate_each([each])[0] for each in asked]
    cached = engine.scheduler.stats().cached_tokens_total
    return Served(checkpoint, adapters, asked, alone, cached)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_changes_no_token(served: Served, way: str) -> None:
    lora = of_experts(served.adapters)
    others = CoreDriver(str(served.checkpoint), lora=lora, **{**OPTIONS, **WAYS[way]})
    assert others.generate_each(served.asked) == served.alone
    if "preempted" in way:
        assert others.scheduler.stats().preemptions_total > 0
    if "prefix" in way:
        assert served.cached_tokens > 0
        assert others.scheduler.stats().cached_tokens_total == 0


def expert_by_expert(fused: Path, folder: Path, *, experts: int) -> Path:
    """Write the same adapter as PEFT wrote it when each expert's matrices were modules."""
    folder.mkdir()
    config = json.loads((fused / "adapter_config.json").read_text())
    config["target_parameters"] = None
    config["target_modules"] = ["gate_proj", "up_proj", "down_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    apart = {}
    for name, tensor in load_file(fused / "adapter_model.safetensors").items():
        stack = name.partition(".experts.")[0] + ".experts"
        is_a, gate_up = ".lora_A." in name, ".base_layer." in name
        for expert in range(experts):
            own = tensor.chunk(experts)[expert] if is_a else tensor[:, expert::experts]
            parts = {"gate_proj": 0, "up_proj": 1} if gate_up else {"down_proj": 0}
            for part, index in parts.items():
                side = "A" if is_a else "B"
                given = own if is_a else own.chunk(len(parts))[index]
                apart[f"{stack}.{expert}.{part}.lora_{side}.weight"] = given.clone()
    save_file(apart, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_expert_by_expert_is_the_same_in_one_tensor(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **FAMILIES["qwen3_moe"])
    fused = make_adapter(tmp_path / "fused", checkpoint, target_modules=[], target_parameters=BOTH)
    apart = expert_by_expert(fused, tmp_path / "apart", experts=EXPERTS["num_experts"])
    engine = CoreDriver(str(checkpoint), lora=of_experts([fused, apart]), **OPTIONS)
    asked = [
        (prompt, PARAMS, request_of(number))
        for number in (1, 2)
        for prompt in prompts(engine.vocab_size)
    ]
    answers = engine.generate_each(asked)
    assert answers[:4] == answers[4:]
    model = adapted_model(checkpoint, fused)
    assert answers[4:] == [
        oracle(model, prompt, told)[0]
        for (prompt, *_), told in zip(asked[4:], answers[4:], strict=True)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"enable_expert_parallel": True}], ids=["parts", "whole"])
def test_two_ranks_say_what_one_says(options: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **FAMILIES["qwen3_moe"])
    adapters = make_adapters(tmp_path, checkpoint)
    lora = of_experts(adapters)
    alone = CoreDriver(str(checkpoint), lora=lora, **OPTIONS)
    asked = [
        (prompt, PARAMS, request_of(number))
        for number in range(4)
        for prompt in prompts(alone.vocab_size)
    ]
    wanted = alone.generate_each(asked)
    ranks = RankGroup(2)
    engine = ranks.driver(str(checkpoint), lora=lora, **OPTIONS, **options)
    assert engine.generate_each(asked) == wanted
    engine.close()
    ranks.close()


def test_what_does_not_fit_is_named_before_anything_changes(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **FAMILIES["qwen3_moe"])
    fused = make_adapter(tmp_path / "fused", checkpoint, target_modules=[], target_parameters=BOTH)
    with pytest.raises(AdapterError, match=r"experts.*--lora-experts"):
        CoreDriver(str(checkpoint), lora=lora_of([fused]), **OPTIONS)
    more = {**EXPERTS, "num_experts": 8}
    other = make_tiny_checkpoint(tmp_path / "other", architecture="qwen3_moe", extra=more)
    with pytest.raises(AdapterError, match=r"experts.*shape \[24, \d+\], where .* \[32, \d+\]"):
        CoreDriver(str(other), lora=of_experts([fused]), **OPTIONS)
    dense = make_tiny_checkpoint(tmp_path / "dense", architecture="qwen3")
    with pytest.raises(ConfigError, match="--lora-experts: the model has no experts"):
        CoreDriver(str(dense), lora=of_experts([fused]), **OPTIONS)
