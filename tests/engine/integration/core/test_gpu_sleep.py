"""On a GPU: what sleeps comes back at its addresses, with its graphs, and with every byte; other
weights take the place of the first ones there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.config_values import SleepLevel
from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.control import CheckWeights, Sleep, UpdateWeights, WakeUp
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from benchmarks.engines.offline_engine import OfflineEngine
from tests.support.models.draft_checkpoints import add_mtp_layer
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

MIXTURE = {
    "architecture": "qwen3_moe",
    "extra": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
MODELS: dict[str, dict[str, Any]] = {
    "keys and values": {"architecture": "qwen3", "head_dim": 64},
    "states, a tied head": {"architecture": "qwen3_next", "tie_word_embeddings": True},
    "experts": MIXTURE,
    "a layer that drafts": {"architecture": "glm4_moe", "drafts": True},
    "adapters": {"architecture": "qwen3", "head_dim": 64, "adapter": {}},
    "adapters of experts": {
        **MIXTURE,
        "adapter": {
            "target_modules": [],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        },
    },
}
PROMPTS = [list(range(5, 40)), list(range(60, 75))]


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path, MODELS[request.param])
    yield case
    for engine in case.opened:
        engine.close()


class Case:
    """Two checkpoints of a model, and engines on them."""

    def __init__(self, folder: Path, model: dict[str, Any]) -> None:
        shape = {key: value for key, value in model.items() if key not in ("drafts", "adapter")}
        architecture = shape.pop("architecture")
        self.paths = [
            make_tiny_checkpoint(folder / str(seed), architecture, seed=seed, **shape)
            for seed in (1, 2)
        ]
        self.options: dict[str, Any] = {
            "num_kv_blocks": 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
        }
        self.lora: LoRARequest | None = None
        if model.get("drafts"):
            for path in self.paths:
                add_mtp_layer(path)
            drafts = SpeculativeConfig(method="mtp", num_tokens=2, adaptive=False)
            self.options["speculative"] = drafts
        if "adapter" in model:
            make_adapter(folder / "adapter", self.paths[0], **model["adapter"])
            modules = (LoraModule(name="a", path=str(folder / "adapter")),)
            experts = "target_parameters" in model["adapter"]
            self.options["lora"] = LoraConfig(modules=modules, experts=experts)
            self.lora = LoRARequest("a", 1)
        self.opened: list[OfflineEngine] = []

    def open(self, number: int) -> OfflineEngine:
        path = str(self.paths[number])
        engine = OfflineEngine(path, enable_sleep_mode=True, **self.options)
        self.opened.append(engine)
        return engine

    def answers(self, engine: OfflineEngine) -> dict[int, list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        for prompt in PROMPTS:
            engine.add(prompt, params)
            if self.lora is not None:
                engine.add(prompt, params, self.lora)
        found: dict[int, list[int]] = {}
        while engine.has_work():
            result = engine.step()
            if result is not None:
                for number, token in zip(result.request_ids, result.token_ids, strict=True):
                    found.setdefault(int(number), []).append(int(token))
        return dict(enumerate(found[number] for number in sorted(found)))


def fall_asleep(engine: OfflineEngine, level: SleepLevel) -> None:
    engine.scheduler.blocks.reset_prefix_cache()
    engine.scheduler.loras.forget_all()
    engine.executor.control(Sleep(level))


def runner_of(engine: OfflineEngine) -> Any:
    return engine.executor.runner


def addresses(engine: OfflineEngine) -> dict[str, int]:
    model = runner_of(engine).steps.model
    return {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}


def test_a_model_sleeps_and_wakes_where_it_was(case: Case) -> None:
    engine = case.open(0)
    expected, where = case.answers(engine), addresses(engine)
    graphs = runner_of(engine).steps.graphs
    assert graphs is not None
    asleep = set()
    for level in [*SleepLevel] * 3:
        fall_asleep(engine, level)
        torch.cuda.synchronize()
        asleep.add(torch.cuda.mem_get_info()[0])
        engine.executor.control(WakeUp())
        assert case.answers(engine) == expected
        assert addresses(engine) == where
        assert runner_of(engine).steps.graphs is graphs
    assert max(asleep) - min(asleep) < 64 << 20, "nothing is held longer each time"


def test_other_weights_take_the_place_of_the_first(case: Case) -> None:
    expected = case.answers(case.open(1))
    engine = case.open(0)
    first, where = case.answers(engine), addresses(engine)
    graphs = runner_of(engine).steps.graphs
    assert first != expected
    for path, told in ((case.paths[1], expected), (case.paths[0], first)):
        engine.scheduler.blocks.reset_prefix_cache()
        engine.scheduler.loras.forget_all()
        engine.executor.control(CheckWeights(str(path)))
        engine.executor.control(UpdateWeights(str(path)))
        assert case.answers(engine) == told
    fall_asleep(engine, SleepLevel.WEIGHTS_ON_HOST)
    engine.executor.control(UpdateWeights(str(case.paths[1])))
    engine.executor.control(WakeUp())
    assert case.answers(engine) == expected
    assert addresses(engine) == where
    assert runner_of(engine).steps.graphs is graphs
