"""Of a multimodal checkpoint the text model is served: as transformers computes it, and said so."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.config import EngineOptions, build_config
from atom.errors import ModelError
from atom.sizing import ModelFacts, UnknownFamilyError
from atom.sizing.text_part import WRAPPERS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.multimodal_checkpoint import (
    KINDS,
    edit_text_config,
    make_multimodal_checkpoint,
)
from tests.support.models.parameter_count import parameter_count

NEW_TOKENS = 8


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def greedy(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    for _ in range(NEW_TOKENS):
        with torch.inference_mode():
            token = model(input_ids=ids).logits[0, -1].argmax()
        ids = torch.cat([ids, token.view(1, 1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def served(folder: Path, prompt: list[int]) -> list[int]:
    driver = CoreDriver(
        str(folder), max_num_batched_tokens=48, max_num_seqs=4, language_model_only=True
    )
    (tokens,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True)
    return tokens


def rename(folder: Path, **begins: str) -> None:
    """Write the weights with other beginnings of names."""
    file = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        begin = next((old for old in begins if name.startswith(f"{old}.".replace("__", "."))), None)
        if begin is not None:
            name = begins[begin] + name.removeprefix(begin.replace("__", "."))
        tensors[name] = tensor
    save_file(tensors, file)


@pytest.mark.sampled(4)
def test_greedy_tokens_equal_the_whole_models(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_multimodal_checkpoint(tmp_path, kind)
    prompt = np.random.default_rng(3).integers(3, 290, size=100).tolist()
    with caplog.at_level(logging.INFO):
        tokens = served(tmp_path, prompt)
    assert tokens == greedy(model, prompt)
    assert "the text model alone is served" in caplog.text
    assert "tensors of parts that are no text are not loaded" in caplog.text


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("qwen3-vl", {"model__language_model": "language_model.model"}),
        ("gemma3", {"language_model__model": "model.language_model"}),
        ("mistral3", {"language_model__model": "model.language_model",
                      "vision_tower": "model.vision_tower"}),
    ],
    ids=str,
)  # fmt: skip
def test_names_of_every_generation_are_found(
    tmp_path: Path, kind: str, begins: dict[str, str]
) -> None:
    model = make_multimodal_checkpoint(tmp_path, kind)
    rename(tmp_path, **begins)
    prompt = np.random.default_rng(4).integers(3, 290, size=30).tolist()
    assert served(tmp_path, prompt) == greedy(model, prompt)


def test_a_missing_tensor_of_the_text_is_named_by_the_text_models_name(tmp_path: Path) -> None:
    make_multimodal_checkpoint(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["language_model.model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"first model\.layers\.1\.mlp\.up_proj\.weight"):
        served(tmp_path, [5])


def test_a_stray_tensor_that_no_encoder_of_images_has_is_refused(tmp_path: Path) -> None:
    make_multimodal_checkpoint(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "adapter.weight": torch.zeros(2)}, file)
    with pytest.raises(ModelError, match=r"1 tensors .* first adapter\.weight"):
        served(tmp_path, [5])


def test_what_the_text_part_does_not_say_is_what_transformers_makes_of_it() -> None:
    """Transformers 4 wrote of a nested config only what differs from its class."""
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import (
        MiniMaxM3VLTextConfig,
    )
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
    from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeTextConfig

    classes = {
        "Gemma3ForConditionalGeneration": transformers.Gemma3TextConfig,
        "Gemma4ForConditionalGeneration": transformers.Gemma4TextConfig,
        "KimiK25ForConditionalGeneration": transformers.DeepseekV3Config,
        "MiniMaxM3SparseForConditionalGeneration": MiniMaxM3VLTextConfig,
        "Mistral3ForConditionalGeneration": transformers.MistralConfig,
        "Qwen3VLForConditionalGeneration": Qwen3VLTextConfig,
        "Qwen3VLMoeForConditionalGeneration": Qwen3VLMoeTextConfig,
        "Qwen3_5ForConditionalGeneration": Qwen3_5TextConfig,
        "Qwen3_5MoeForConditionalGeneration": Qwen3_5MoeTextConfig,
        "Llama4ForConditionalGeneration": transformers.Llama4TextConfig,
    }
    assert set(classes) == set(WRAPPERS)
    for name, config_class in classes.items():
        for key, value in WRAPPERS[name].defaults.items():
            config = config_class()
            config.allow_global_per_layer_attribute_access = True  # Gemma 4 has heads by layer
            found = config.rope_parameters["rope_theta"] if key == "rope_theta" else None
            assert value == (found or getattr(config, key)), (name, key)


def test_facts_of_a_sparse_text_part_are_those_of_the_whole(tmp_path: Path) -> None:
    """As google/gemma-3-4b-it has it."""
    sparse = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            "model_type": "gemma3_text",
        },
        "torch_dtype": "bfloat16",
        "mm_tokens_per_image": 256,
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
        },
    }
    facts = ModelFacts.from_hf_config(sparse)
    assert facts.vision is not None
    # Those of google/gemma-3-4b-it but its decoder's: 416,866,032 of the tower, and the projector.
    assert facts.vision.parameters == 416_866_032 + 1152 * 2560 + 1152
    assert facts.checkpoint.wrapper == "Gemma3ForConditionalGeneration"
    assert parameter_count(facts) == 3_880_263_168 + facts.vision.parameters
    assert facts.weight_dtype_bytes == 2
    assert facts.layers[0].attention.num_kv_heads == 4
    assert [layer.attention.mask.window for layer in facts.layers[4:7]] == [1024, None, 1024]


def test_matrices_left_unquantised_are_found_by_their_names_in_the_wrapper() -> None:
    text = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 64}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text | {"model_type": "mistral"},
        "quantization_config": {
            "quant_method": "fp8",
            "modules_to_not_convert": [
                "model.vision_tower",
                "model.language_model.layers.0.mlp.down_proj",
                "language_model.model.layers.1.self_attn.o_proj",
            ],
        },
    }
    layers = ModelFacts.from_hf_config(config).layers
    matrices = {name for layer in layers for name, _ in layer.formats}
    plain = [matrices.difference(name for name, _ in layer.formats) for layer in layers]
    assert plain == [{"mlp.down_proj"}, {"self_attn.o_proj"}]


def test_a_text_part_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    make_multimodal_checkpoint(tmp_path, "mistral3")
    edit_text_config(tmp_path, model_type="qwen2")
    with pytest.raises(ModelError, match=r"text part of Mistral3For.* 'qwen2'.*supported: mistral"):
        build_config(EngineOptions.of(model=str(tmp_path)))


@pytest.mark.parametrize(
    "name", ["MllamaForConditionalGeneration", "Qwen2VLForConditionalGeneration"]
)
def test_a_wrapper_without_a_text_family_is_refused_with_those_that_have_one(
    tmp_path: Path, name: str
) -> None:
    make_multimodal_checkpoint(tmp_path, "gemma3")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [name]}))
    with pytest.raises(ModelError, match=rf"{name} is not supported.*of Gemma3ForCond.*text part"):
        build_config(EngineOptions.of(model=str(tmp_path)))
    with pytest.raises(UnknownFamilyError, match=name):
        ModelFacts.from_hf_config(json.loads(file.read_text()))
