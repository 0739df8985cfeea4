"""What checkpoints of DeepSeek hold beside what is computed, and what their config.json may not
say."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom.config import EngineOptions, build_config
from atom.errors import ModelError
from atom.models.registry import model_spec
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path, "deepseek3", extra=EXPERTS)


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def add_tensor(folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), name: torch.zeros(4)}, file, metadata={"format": "pt"})


def test_layers_that_predict_further_tokens_are_skipped_and_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_config(folder, num_nextn_predict_layers=1)
    add_tensor(folder, "model.layers.2.eh_proj.weight")
    with caplog.at_level(logging.INFO):
        driver = CoreDriver(str(folder))
    assert (
        "1 tensors of layers and experts that are not computed here are not loaded" in caplog.text
    )
    assert "model.layers.2.eh_proj.weight" in caplog.text
    assert len(driver.generate([[5, 6, 7]], max_tokens=3, ignore_eos=True)[0]) == 3


@pytest.mark.parametrize("name", ["model.layers.3.eh_proj.weight", "model.layers.20.x.weight"])
def test_layers_that_config_json_does_not_name_are_left_over(folder: Path, name: str) -> None:
    edit_config(folder, num_nextn_predict_layers=1)
    add_tensor(folder, name)
    with pytest.raises(ModelError, match=f"no part of a DeepseekV3ForCausalLM.*{name}"):
        CoreDriver(str(folder))


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("DeepseekV3ForCausalLM", {"topk_method": "greedy"}, "topk_method 'greedy'"),
        ("DeepseekV3ForCausalLM", {"n_group": None}, "n_group must be a whole number"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob True"),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc'"),
    ],
)
def test_another_way_to_choose_experts_is_refused(
    folder: Path, architecture: str, changes: dict[str, Any], words: str
) -> None:
    edit_config(
        folder,
        **{"architectures": [architecture], "norm_topk_prob": architecture.startswith("DeepseekV3")}
        | changes,
    )
    config = build_config(EngineOptions.of(model=str(folder), device="cpu"))
    with pytest.raises(ModelError, match=words):
        model_spec(config.model)


def test_published_config_of_v3_is_read(folder: Path) -> None:
    edit_config(
        folder,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        rope_parameters=None,
        rope_theta=10_000,
        rope_scaling={
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    spec = model_spec(build_config(EngineOptions.of(model=str(folder), device="cpu")).model)
    mscale = 1.3688879454113936  # 0.1 ln 40 + 1
    assert spec.layers[0].attention.scale == pytest.approx(24**-0.5 * mscale**2)
    assert spec.layers[0].rope.attention_factor == pytest.approx(1.0)
    assert spec.layers[0].rope.interleaved
