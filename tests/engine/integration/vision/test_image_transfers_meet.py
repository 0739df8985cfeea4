"""Prompts with images whose pages come from another engine, beside other features of both engines:
the tokens of transformers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from atom.kv_transfer_config.values import TRANSPORTS
from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.request import LoRARequest
from atom.model_engine.request_image import RequestImage
from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.vision_checkpoints import VisionModel, pictures_and_texts

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
_TIER = {"kv_offloading_size": 0.01, "kv_offload_min_tokens": 0}
FEATURES: dict[str, dict[str, Any]] = {
    "a tier in files": {**_TIER, "kv_disk_size": 0.1},
    "a tier in the host's memory": _TIER,
    "adapters": {"lora": True},
    "drafts": {"speculative": SpeculativeConfig(num_tokens=2, adaptive=False)},
    "short chunks": {"max_num_batched_tokens": 20},
    "prompts first": {"scheduling_policy": "prefill_first"},
}
KINDS = ("kimi-k2.5", "qwen3-vl", "gemma3")
CASES = [
    pytest.param(kind, feature, way, marks=[] if at == 0 else pytest.mark.whole)
    for at, (kind, feature, way) in enumerate(product(KINDS, FEATURES, ("tcp", "nixl")))
    # Each feature by each way, and each family by each of both.
    if (at + at // 12) % 3 == 0
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], VisionModel]:
    """Return a function that makes the model of each kind once."""
    made: dict[str, VisionModel] = {}

    def of(kind: str) -> VisionModel:
        if kind not in made:
            made[kind] = VisionModel(tmp_path_factory.mktemp("vision"), kind)
        return made[kind]

    return of


@pytest.mark.parametrize(("kind", "feature", "way"), CASES)
def test_tokens_are_those_of_transformers(
    models: Callable[[str], VisionModel], kind: str, feature: str, way: str, tmp_path: Path
) -> None:
    plain, options, lora = models(kind), dict(FEATURES[feature]), None
    oracle = plain
    if "kv_disk_size" in options:
        options["kv_disk_dir"] = str(tmp_path)
    if options.pop("lora", False):
        oracle, lora = plain.adapted(tmp_path), LoRARequest("own", 1)
        own = LoraModule(name="own", path=str(tmp_path), folder=str(tmp_path))
        options["lora"] = LoraConfig(modules=(own,))
    transports = TRANSPORTS["nixl"] if way == "nixl" else ("tcp",)
    pair, moved = TransferPair(plain.folder, transfer={"transports": transports}, **options), 0
    try:
        for prompt in pictures_and_texts(plain)[:4]:
            expected = oracle.greedy(prompt, 5)
            fields = {"images": [RequestImage.of(each) for each in prompt.images], "lora": lora}
            for _ in range(2):  # again, from what both engines kept
                note = pair.prefill(prompt.token_ids, GREEDY, **fields)
                answer = pair.decode(prompt.token_ids, GREEDY, note, **fields)
                assert answer.tokens == expected, prompt.token_ids
                if answer.outcome is not None:
                    assert answer.outcome.result is not TransferResult.RECOMPUTED, answer.outcome
                    moved += answer.outcome.tokens
        assert moved > 0
        for core in (pair.producer.core, pair.consumer.core):
            assert core._scheduler.stats().image_bytes == 0
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()
