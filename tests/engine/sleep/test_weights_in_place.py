"""Other weights in the tensors of a model compute what a model that was made with them does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from atom.model_engine.runner.sleep.weights_in_place import copy_weights, read_in_place
from atom.model_engine.runner.speculation.speculation_setup import SpeculationSetup
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.published_forms import make_published_form
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

PROMPT = list(range(30, 70))
# Absorbed matrices, states beside keys, experts: the rest in the long run.
DAILY = {"deepseek_v3", "qwen3_next", "gpt_oss"}


def tokens(driver: CoreDriver) -> list[int]:
    (answer,) = driver.generate([PROMPT], max_tokens=12, ignore_eos=True)
    return answer


def equal(model: nn.Module, other: nn.Module) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(one, another) for one, another in pairs)


def assert_takes_the_place(first: Path, second: Path) -> None:
    options: dict[str, Any] = {"num_kv_blocks": 120, "device": "cpu"}
    old, new = CoreDriver(str(first), **options), CoreDriver(str(second), **options)
    expected = tokens(new)
    tokens(old)  # it has computed by the first ones
    runner: Any = old.executor.runner  # type: ignore[attr-defined]
    models = runner._speculation.models(runner._model)
    assert not equal(runner._model, new.executor.runner._model)  # type: ignore[attr-defined]
    where = [tensor.data_ptr() for model in models for tensor in model.parameters()]
    config = runner._config.with_weights(str(second))
    with torch.inference_mode():
        assert read_in_place(models, runner._builder, SpeculationSetup(config, 1), config)
    old.scheduler.blocks.reset_prefix_cache()
    assert tokens(old) == expected
    assert equal(runner._model, new.executor.runner._model)  # type: ignore[attr-defined]
    assert where == [tensor.data_ptr() for model in models for tensor in model.parameters()]


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in DAILY else pytest.mark.slow)
        for name in get_args(Architecture)
    ],
)
def test_every_architecture(architecture: Architecture, tmp_path: Path) -> None:
    assert_takes_the_place(
        *(make_tiny_checkpoint(tmp_path / str(seed), architecture, seed=seed) for seed in (1, 2))
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fp8-blocks", "quark-mxfp4", "gptq", "compressed-int8"])
def test_quantised_forms(form: str, tmp_path: Path) -> None:
    """What a backend prepares of codes and scales."""
    folders = [make_published_form(tmp_path / str(n), "GLM-4.5", form, seed=n)[0] for n in (1, 2)]
    assert_takes_the_place(*folders)


def test_tensors_of_another_kind_are_left_as_they_are() -> None:
    """What is prepared may depend on values: then nothing is copied."""
    models = [nn.Linear(4, 3), nn.Linear(4, 3, dtype=torch.bfloat16)]
    before = models[0].weight.clone()
    assert not copy_weights([models[0]], [models[1]])
    assert not copy_weights([models[0]], [nn.Linear(4, 3, bias=False)])
    assert torch.equal(models[0].weight, before)
