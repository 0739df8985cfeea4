"""Tokens of every adapter equal PEFT's in float32, in batches of several adapters and none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.sizing.overheads import LoraRoom, lora_bytes
from atom.sizing.weights import Sharding
from tests.engine.integration.ranks.test_tensor_parallel import EXPERTS, MLA_EXPERTS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.lora_adapter import adapted_model, make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 8
PROMPT_LENGTHS = (1, 15, 40, 70)
OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 80, "max_num_seqs": 8, "max_num_batched_tokens": 48, "max_model_len": 256,
}  # fmt: skip
# Of three adapters: as many ways to scale, and one that leaves attention alone.
ADAPTERS: dict[str, dict[str, Any]] = {
    "every layer": {"rank": 4},
    "another rank, rank-stabilised": {"rank": 7, "use_rslora": True, "seed": 1},
    "ranks and scales of their own": {
        "rank": 3, "rank_pattern": {"o_proj": 5}, "alpha_pattern": {"down_proj": 9}, "seed": 2,
    },
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"architecture": "qwen3"},
    "llama with biases": {"architecture": "llama", "attention_bias": True},
    "phi3, whose checkpoint has qkv and gate_up fused": {"architecture": "phi3"},
    "gemma2": {"architecture": "gemma2", "tie_word_embeddings": True},
    "olmo3": {"architecture": "olmo3"},
    "latent attention": {"architecture": "deepseek3", "extra": MLA_EXPERTS},
    "windows beside entries": {
        "architecture": "deepseek4", "layers": 3,
        "extra": {"compress_rate_hca": 24, "layer_types": [
            "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
        ]},
    },
    "a shared expert behind a gate": {
        "architecture": "qwen2_moe",
        "extra": {**EXPERTS, "shared_expert_intermediate_size": 40},
    },
    "delta nets": {
        "architecture": "qwen3_next", "layers": 4,
        "extra": {
            **EXPERTS, "shared_expert_intermediate_size": 40, "linear_num_value_heads": 6,
        },
    },
    "delta nets, a matrix for each part": {
        "architecture": "qwen3_5", "layers": 4, "extra": {"linear_num_value_heads": 6},
    },
}  # fmt: skip


def lora_of(adapters: list[Path], **room: int) -> LoraConfig:
    """Every adapter is served from the start; room: of slots and ranks."""
    modules = tuple(
        LoraModule(name=f"adapter-{number}", path=str(path))
        for number, path in enumerate(adapters, 1)
    )
    return LoraConfig(
        modules=modules, **{"max_loras": 3, "max_rank": 8, "max_cpu_loras": 3, **room}
    )


def request_of(number: int) -> LoRARequest | None:
    """Of an adapter by its number; 0 for the model alone."""
    return LoRARequest(f"adapter-{number}", number) if number else None


def oracle(model: nn.Module, prompt: list[int], told: list[int]) -> tuple[list[int], list[float]]:
    """What the model says behind a prompt, as far as `told` is what it says: likeliest tokens, and
    the log-probabilities of those that were told."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + told])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.log_softmax(-1)[range(len(told)), told]
    return logits.argmax(-1).tolist(), chosen.tolist()


def prompts(vocab_size: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, vocab_size, size=length).tolist() for length in PROMPT_LENGTHS]


# Whose adapters test_lora_families.py compares with PEFT's, and whose forms others here have.
_REPEATED = {
    "llama with biases", "gemma2", "olmo3", "a shared expert behind a gate",
    "delta nets, a matrix for each part",
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.whole if name in _REPEATED else ()) for name in FAMILIES],
)
def test_tokens_of_a_mixed_batch_are_peft_s(family: str, tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **FAMILIES[family])
    adapters = [
        make_adapter(tmp_path / str(number), checkpoint, **asked)
        for number, asked in enumerate(ADAPTERS.values(), 1)
    ]
    engine = CoreDriver(str(checkpoint), lora=lora_of(adapters), **OPTIONS)
    model = engine.executor.runner._model  # type: ignore[attr-defined]
    taken = sum(each.nbytes for name, each in model.named_parameters() if ".lora_" in name)
    room = LoraRoom(slots=3, rank=8)
    assert lora_bytes(engine.config.model.facts, room, 4, Sharding()) == taken

    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    asked = [
        (prompt, params, request_of(number))
        for number in range(len(adapters) + 1)
        for prompt in prompts(engine.vocab_size)
    ]
    answers = engine.generate_each(asked)
    found = [[entry.logprob for entry in entries] for entries in engine.logprobs]

    models = [adapted_model(checkpoint, adapter) for adapter in (None, *adapters)]
    for (prompt, _, lora), told, logprobs in zip(asked, answers, found, strict=True):
        model = models[lora.lora_int_id if lora else 0]
        tokens, wanted = oracle(model, prompt, told)
        assert told == tokens
        assert logprobs == pytest.approx(wanted, abs=2e-4)
    of_one = [found[first : first + len(PROMPT_LENGTHS)] for first in range(0, len(found), 4)]
    assert len({str(each) for each in of_one}) == 4, (
        "an adapter that changes nothing proves nothing"
    )
