"""Prompts with images beside every pair of the engine's features: the tokens of transformers."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.vision_checkpoints import VisionModel, pictures_and_texts

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
FEATURES: dict[str, dict[str, Any]] = {
    "drafts": {"speculative": SpeculativeConfig(num_tokens=2, fewest_matched=1, adaptive=False)},
    "adapters": {"lora": True},
    "a tier in the host's memory": {
        "kv_offloading_size": 0.01, "kv_offload_min_tokens": 0, "num_kv_blocks": 14,
        "max_model_len": 128,
    },
    "a host a step late": {"depth": 1},
    "masks after the layers": {"samples_later": True},
    "prompts first": {"scheduling_policy": "prefill_first"},
    "no prefix cache": {"enable_prefix_caching": False},
    "short chunks": {"max_num_batched_tokens": 9},
    "an fp32 cache of single tokens": {"block_size": 1},
    "the reference": {"backend": "torch_ref"},
}  # fmt: skip
# A tier needs cached prefixes, and has pages of whole blocks.
APART = {
    frozenset({"a tier in the host's memory", "no prefix cache"}),
    frozenset({"a tier in the host's memory", "an fp32 cache of single tokens"}),
}
PAIRS = [pair for pair in combinations(FEATURES, 2) if frozenset(pair) not in APART]
KINDS = ("mistral3", "qwen3-vl", "qwen3.5")


@pytest.fixture(scope="module", params=KINDS)
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[VisionModel, VisionModel, Path]:
    """The model, the model with an adapter, and the adapter's folder."""
    folder = tmp_path_factory.mktemp("vision")
    model = VisionModel(folder / "model", request.param)
    return model, model.adapted(folder / "adapter"), folder / "adapter"


@pytest.fixture(scope="module")
def expected(models: tuple[VisionModel, VisionModel, Path]) -> dict[tuple[int, bool], list[int]]:
    """The tokens of each prompt, without and with the adapter."""
    plain, adapted, _ = models
    return {
        (at, own): (adapted if own else plain).greedy(prompt, 5)
        for at, prompt in enumerate(pictures_and_texts(plain))
        for own in (False, True)
    }


@pytest.mark.rotated
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_a_pair_of_features_changes_no_token(
    models: tuple[VisionModel, VisionModel, Path],
    expected: dict[tuple[int, bool], list[int]],
    pair: tuple[str, str],
) -> None:
    model, _, adapter = models
    options: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "block_size": 16}
    for feature in pair:
        options |= FEATURES[feature]
    has_adapter = options.pop("lora", False)
    if has_adapter:
        modules = (LoraModule(name="own", path=str(adapter), folder=str(adapter)),)
        options["lora"] = LoraConfig(modules=modules)
    engine = CoreDriver(str(model.folder), **options)
    prompts = pictures_and_texts(model)
    own = [has_adapter and at % 2 == 1 for at in range(len(prompts))]
    asked = [
        prompt.asked(GREEDY, LoRARequest("own", 1) if mine else None)
        for prompt, mine in zip(prompts, own, strict=True)
    ]
    wanted = [expected[at, mine] for at, mine in enumerate(own)]
    assert engine.generate_each(asked) == wanted
    assert engine.generate_each(asked) == wanted  # from what is cached
