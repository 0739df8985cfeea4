"""A quantised checkpoint that cannot be served is refused with the tensor and the remedy, from
config.json and headers alone."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom.config import EngineOptions, build_config
from atom.errors import ModelError
from atom.model_engine.model_runner import ModelRunner
from atom.model_loader import weight_loader
from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint
from tests.support.models.tiny_model import make_tiny_checkpoint

_DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quantised_checkpoint(tmp_path_factory.mktemp("fp8"), LAYOUTS["fp8-blocks"])[0]


@pytest.fixture
def folder(blocks: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blocks, tmp_path / "model"))


@pytest.fixture(autouse=True)
def _nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a tensor was read before everything was known to be there")

    monkeypatch.setattr(weight_loader, "_read", read)


def load(folder: Path, **options: Any) -> None:
    config = build_config(EngineOptions.of(model=str(folder), device="cpu", **options))
    ModelRunner(config).initialize(lambda phase, share: None)


def edit_quantization(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"].update(changes)
    file.write_text(json.dumps(config))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """By the last part of the name, of the second layer's down projection; None takes it away."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for last, tensor in changes.items():
        tensors.pop(f"{_DOWN}.{last}")
        if tensor is not None:
            tensors[f"{_DOWN}.{last}"] = tensor
    save_file(tensors, file)


def test_a_missing_scale_is_named(folder: Path) -> None:
    edit_tensors(folder, weight_scale_inv=None)
    with pytest.raises(ModelError, match=rf"first {_DOWN}\.weight_scale_inv; .* incomplete"):
        load(folder)


def test_a_scale_of_another_shape_is_named_with_both(folder: Path) -> None:
    edit_tensors(folder, weight_scale_inv=torch.ones(2, 2))
    words = rf"{_DOWN}\.weight_scale_inv has shape \[2, 2\], the configuration calls for \[1, 3\]"
    with pytest.raises(ModelError, match=words):
        load(folder)


@pytest.mark.parametrize(
    ("dtype", "found"), [(torch.float8_e5m2, "F8_E5M2"), (torch.bfloat16, "bfloat16")]
)
def test_an_element_of_another_type_is_named_with_both(
    folder: Path, dtype: torch.dtype, found: str
) -> None:
    edit_tensors(folder, weight=torch.zeros(128, 320).to(dtype))
    words = rf"{_DOWN}\.weight holds {found}, where config\.json calls for float8_e4m3fn"
    with pytest.raises(ModelError, match=words):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_method": "bitsandbytes"}, r"quant_method 'bitsandbytes' .* known: fp8, .* awq"),
        ({"quant_method": "awq", "bits": 3}, r"awq with 3 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, r"awq of version 'gemv'"),
        ({"weight_block_size": [128]}, r"blocks of \[128\]"),
        ({"quant_method": "quark"}, r"quark without a format of weights"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
             "config_groups": {"group_0": {"weights": {
                 "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 8}}}},
            r"type float, strategy tensor_group, group_size 8 \(it has 4 bits and groups of 16\)",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {
                name: {"weights": {"num_bits": 8, "type": kind, "strategy": "channel"}}
                for name, kind in (("a", "int"), ("b", "float"))}},
            r"two config_groups with targets \['Linear'\]",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {
                "a": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},
            r"is to be multiplied with 16-bit inputs",
        ),
        ({"quant_method": "mxfp4"}, r"is one of experts in one tensor, which gpt-oss has"),
    ],
)  # fmt: skip
def test_a_method_or_scheme_is_refused_with_what_is_supported(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    edit_quantization(folder, **changes)
    with pytest.raises(ModelError, match=words) as refused:
        load(folder)
    assert "another checkpoint" in str(refused.value) or "supported: fp8" in str(refused.value)


def test_a_group_that_does_not_divide_names_the_matrix(tmp_path: Path) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["awq"])
    edit_quantization(quantised, group_size=128)
    with pytest.raises(ModelError, match=r"mlp\.down_proj: its 320 of 320 inputs are no whole"):
        load(quantised)


@pytest.mark.parametrize(
    ("layout", "missing"),
    [
        ("modelopt-nvfp4", "weight_scale"),
        ("modelopt-nvfp4", "weight_scale_2"),
        ("compressed-nvfp4", "weight_global_scale"),
        ("mxfp8", "weight_scale_inv"),
    ],
)
def test_a_missing_scale_of_a_matrix_to_convert_is_named(
    tmp_path: Path, layout: str, missing: str
) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS[layout])
    edit_tensors(quantised, **{missing: None})
    name = "weight_scale" if missing == "weight_scale_inv" else missing
    with pytest.raises(ModelError, match=rf"first {_DOWN}\.{name}; .* incomplete"):
        load(quantised)


@pytest.mark.parametrize(("dtype", "name"), [(torch.uint8, "U8"), (torch.int8, "I8")])
def test_a_quantised_head_is_refused_by_name(folder: Path, dtype: torch.dtype, name: str) -> None:
    """As some checkpoints in NVFP4 have it, two inputs a byte."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = torch.zeros(len(head), head.shape[1] // 2, dtype=dtype)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=rf"lm_head\.weight is quantised \({name}\).* leaves lm_h"):
        load(folder)


@pytest.mark.parametrize(
    ("last", "tensor", "words"),
    [
        (
            "weight_scale",
            torch.ones(128, 10).to(torch.float8_e4m3fn),
            r"\[128, 10\], .* \[128, 20\]",
        ),
        ("weight_scale", torch.ones(128, 20), r"holds float32, where .* float8_e4m3fn"),
        ("weight_scale_2", torch.ones(128), r"weight_scale_2 has shape \[128\]"),
        ("weight", torch.ones(128, 320, dtype=torch.uint8), r"\[128, 320\], .* \[128, 160\]"),
    ],
)
def test_tensors_of_a_matrix_to_convert_are_compared_with_config_json(
    tmp_path: Path, last: str, tensor: torch.Tensor, words: str
) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["modelopt-nvfp4"])
    edit_tensors(quantised, **{last: tensor})
    with pytest.raises(ModelError, match=rf"{_DOWN}\.{last}.*{words}|{words}"):
        load(quantised)


@pytest.mark.parametrize(
    ("layout", "last", "value"),
    [
        ("modelopt-nvfp4", "weight_scale", float("nan")),
        ("modelopt-nvfp4", "weight_scale", -1.0),
        ("modelopt-nvfp4", "weight_scale_2", float("inf")),
        ("compressed-nvfp4", "weight_global_scale", 0.0),
        ("modelopt-mxfp8", "weight_scale", 255.0),
    ],
)
def test_a_scale_that_is_no_number_names_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, last: str, value: float
) -> None:
    monkeypatch.undo()  # a number is no part of a header
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS[layout])
    scale = load_file(quantised / "model.safetensors")[f"{_DOWN}.{last}"]
    spoilt = scale.float()
    spoilt.view(-1)[-1] = value
    edit_tensors(quantised, **{last: spoilt.to(scale.dtype)})
    with pytest.raises(ModelError, match=rf"{_DOWN}\.{last}: holds a scale that is negative, inf"):
        load(quantised)


def test_inputs_that_are_no_whole_groups_of_nvfp4_name_the_matrix(tmp_path: Path) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["modelopt-nvfp4"])
    file = quantised / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"intermediate_size": 312}))
    with pytest.raises(
        ModelError, match=r"mlp\.down_proj: its 312 of 312 inputs are no whole .* 16"
    ):
        load(quantised)


def test_an_input_of_no_group_names_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # a group's number is no part of a header
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["gptq-ordered"])
    edit_tensors(quantised, g_idx=torch.full((320,), 10, dtype=torch.int32))
    with pytest.raises(ModelError, match=rf"{_DOWN}\.g_idx: names groups 10 to 10, .* 0 to 9"):
        load(quantised)


@pytest.mark.parametrize(
    ("layout", "changes"),
    [("gptq-ordered", {"desc_act": False}), ("compressed-int4-ordered", {})],
)
def test_an_order_that_the_config_does_not_tell_of_is_refused(
    tmp_path: Path, layout: str, changes: dict[str, Any]
) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS[layout])
    if not changes:
        plain = LAYOUTS["compressed-int4"].config
        changes = {"config_groups": plain["config_groups"]}
    edit_quantization(quantised, **changes)
    with pytest.raises(ModelError, match=r"g_idx has inputs in another order, .* says nothing"):
        load(quantised)


def test_an_order_that_is_missing_is_named(tmp_path: Path) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["gptq-ordered"])
    edit_tensors(quantised, g_idx=None)
    with pytest.raises(ModelError, match=rf"first {_DOWN}\.g_idx"):
        load(quantised)


HEADERS = {
    "empty": b"",
    "length beyond the file": struct.pack("<Q", 1 << 40) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"\xff\xff\xff\xff",
    "offsets beyond the file": struct.pack("<Q", 63)
    + b'{"a":{"dtype":"F32","shape":[1048576],"data_offsets":[0,4194304]}}'[:63],
    "a negative shape": struct.pack("<Q", 54)
    + b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'[:54] + b"\0" * 4,
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_names_the_file(folder: Path, name: str) -> None:
    (folder / "model.safetensors").write_bytes(HEADERS[name])
    with pytest.raises(ModelError, match=r"model\.safetensors: is truncated or not a safetensors"):
        load(folder)


def test_a_plain_checkpoint_with_a_stray_scale_is_refused(tmp_path: Path) -> None:
    plain = make_tiny_checkpoint(tmp_path, "qwen3")
    tensors = load_file(plain / "model.safetensors")
    tensors[f"{_DOWN}.weight_scale"] = torch.ones(1)
    save_file(tensors, plain / "model.safetensors")
    with pytest.raises(ModelError, match=rf"1 tensors .* first {_DOWN}\.weight_scale"):
        load(plain)
