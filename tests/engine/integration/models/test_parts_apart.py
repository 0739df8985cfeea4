"""What config.json says of one part of a model, in every spelling, is that part's.

Layers by their numbers, ropes of an odd number of elements, activations of convolutions, numbers of
heads that follow from others."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from atom.config import EngineOptions, build_config
from atom.errors import AtomError
from atom.sizing import ModelFacts
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.config_sweep import Change, verdict
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

WIDE: dict[str, Any] = {"global_head_dim": 32, "num_global_key_value_heads": 1}


@pytest.mark.parametrize("layers", [5, 12, 30])
def test_gemma_4_as_transformers_saves_it_has_its_layers(layers: int, tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, "gemma4", layers=layers, extra=WIDE)
    config = json.loads((tmp_path / "config.json").read_text())
    transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    facts = ModelFacts.from_hf_config(saved)
    assert facts == ModelFacts.from_hf_config(config)
    full = [layer for layer in facts.layers if layer.attention.head_dim == 32]
    assert {layer.attention.num_kv_heads for layer in full} == {1}
    assert verdict(tmp_path, saved, Change(("hidden_size",), saved["hidden_size"])) == "equal"


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_numbers_of_layers_may_be_padded(width: int) -> None:
    own = {str(index).zfill(width): {"head_dim": 32} for index in (1, 11)}
    config = {
        "architectures": ["Gemma4ForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 12, "vocab_size": 256,
        "intermediate_size": 64, "max_position_embeddings": 512, "per_layer_config": own,
        "layer_types": ["full_attention" if index in (1, 11) else "sliding_attention"
                        for index in range(12)],
    }  # fmt: skip
    sizes = [layer.attention.head_dim for layer in ModelFacts.from_hf_config(config).layers]
    assert [index for index, size in enumerate(sizes) if size == 32] == [1, 11]


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize(("head_dim", "share"), [(24, 0.4), (20, 0.1), (20, 0.15), (24, 0.5)])
@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_next"])
def test_a_rope_of_any_number_of_elements_is_transformers_or_refused(
    family: Architecture, head_dim: int, share: float, kind: str, tmp_path: Path
) -> None:
    make_tiny_checkpoint(tmp_path, family, head_dim=head_dim, hidden=4 * head_dim)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = {**ROPES[kind], "partial_rotary_factor": share, "rope_theta": 10_000.0}
    said = verdict(tmp_path, config, Change(("rope_parameters",), rope))
    assert said in ("equal", "refused", "by transformers")
    with contextlib.suppress(AtomError):  # nothing else ends a start
        CoreDriver(str(tmp_path), num_kv_blocks=40, max_model_len=256)
    if share == 0.5 and kind != "yarn":
        assert said == "equal"


OF_MORE_THAN_MLPS = (
    "qwen3_next", "qwen3_5", "qwen3_5_moe", "granite_hybrid", "kimi_linear", "deepseek4",
)  # fmt: skip


@pytest.mark.parametrize("family", OF_MORE_THAN_MLPS)
def test_an_activation_that_other_parts_take_too_is_refused(
    family: Architecture, tmp_path: Path
) -> None:
    make_tiny_checkpoint(tmp_path, family, layers=4, extra={"hidden_act": "gelu_pytorch_tanh"})
    with pytest.raises(AtomError, match=r"hidden_act 'gelu_pytorch_tanh' is not supported"):
        build_config(EngineOptions.of(model=str(tmp_path), device="cpu"))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "served"), [(3, 3, False), (6, 3, True), (6, 2, False), (8, 4, True)]
)
def test_heads_that_are_twice_as_many_are_checked_as_those_given(
    heads: int, kv_heads: int, served: bool, tmp_path: Path
) -> None:
    make_tiny_checkpoint(tmp_path, "mimo_v2", layers=3, heads=heads, kv_heads=kv_heads)
    config = json.loads((tmp_path / "config.json").read_text())
    said = verdict(tmp_path, config, Change(("hidden_size",), config["hidden_size"]))
    assert said in (("equal",) if served else ("refused", "by transformers"))
    if not served:
        with pytest.raises(AtomError, match=r"KV heads .* do not divide num_attention_heads"):
            build_config(EngineOptions.of(model=str(tmp_path), device="cpu"))
