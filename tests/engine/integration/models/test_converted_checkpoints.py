"""Checkpoints in NVFP4 with scales as they are published: what the engine computes is what the
nearest fp8 numbers with a scale per output compute, and close to what the checkpoint stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.entrypoints.startup.startup_table import startup_rows
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.converted_layouts import Tensors, as_fp8_rows, nvfp4
from tests.support.models.quantised_checkpoint import (
    LAYOUTS,
    Layout,
    make_quantised_checkpoint,
)

OPTIONS: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 4}
NEW_TOKENS = 8
PROMPT = [int(token) for token in torch.randint(3, 250, (70,), generator=torch.manual_seed(4))]


def published(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """With every block scale that there is; beside, the fp8 numbers that it is converted to."""
    tensors, values = nvfp4(x, exact=False)
    whole = tensors["weight_scale_2"].double()
    steps = (values.double() / whole * 1024).round() / 1024  # e2m1 times e4m3 is a multiple
    return tensors, (as_fp8_rows(steps) * whole).float()


def answer(folder: Path) -> tuple[list[int], CoreDriver]:
    driver = CoreDriver(str(folder), **OPTIONS)
    (tokens,) = driver.generate([PROMPT], max_tokens=NEW_TOKENS, ignore_eos=True)
    return tokens, driver


def logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return found


def test_logits_are_those_of_the_nearest_fp8_and_near_those_of_nvfp4(tmp_path: Path) -> None:
    config = LAYOUTS["modelopt-nvfp4"].config
    quantised, nearest = make_quantised_checkpoint(tmp_path / "a", Layout(config, published))
    exact_of = Layout(config, lambda x: nvfp4(x, exact=False))
    _, exact = make_quantised_checkpoint(tmp_path / "b", exact_of)
    tokens, driver = answer(quantised)
    theirs = logits(nearest, PROMPT + tokens)
    assert tokens == theirs[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    meant = logits(exact, PROMPT + tokens)
    drawn = make_quantised_checkpoint(tmp_path / "c", Layout({}, lambda x: ({"weight": x}, x)))[1]
    own = (meant - logits(drawn, PROMPT + tokens)).norm()
    assert 0 < (theirs - meant).norm() < 0.4 * own, "far less than four bits changed"
    told = dict(startup_rows(driver.report))["weights"]
    assert told.endswith(", NVFP4 converted to fp8 with a scale per output")


def describe(folder: Path, **section: Any) -> None:
    """Move the quantisation out of config.json, as the first NVFP4 checkpoints have it."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    told = {"producer": {"name": "modelopt"}, "quantization": section}
    (folder / "hf_quant_config.json").write_text(json.dumps(told))


def move_scales(folder: Path) -> None:
    """Cut the file between the matrices and their scales."""
    tensors = load_file(folder / "model.safetensors")
    scales = {name: tensors.pop(name) for name in list(tensors) if "scale" in name}
    files = {"model-a.safetensors": tensors, "model-b.safetensors": scales}
    (folder / "model.safetensors").unlink()
    for file, held in files.items():
        save_file(held, folder / file, metadata={"format": "pt"})
    index = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_formats_of_modules_are_read_from_the_optimizers_own_file(tmp_path: Path) -> None:
    """MIXED_PRECISION as NVIDIA publishes it: experts in NVFP4, attention in FP8, scales of a cache
    beside it, and a file that ends between matrices and scales."""
    extra = {
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    }  # fmt: skip
    quantised, plain = make_quantised_checkpoint(
        tmp_path, LAYOUTS["modelopt-nvfp4"], "qwen3_moe", extra=extra,
        others={"o_proj": None, "self_attn": LAYOUTS["fp8-tensor"]},
    )  # fmt: skip
    tensors = load_file(quantised / "model.safetensors")
    layers = range(json.loads((quantised / "config.json").read_text())["num_hidden_layers"])
    listed = {}
    for layer in layers:
        name = f"model.layers.{layer}"
        listed |= {f"{name}.self_attn.{each}_proj": {"quant_algo": "FP8"} for each in "qkv"}
        listed[f"{name}.mlp.experts"] = {"quant_algo": "NVFP4", "group_size": 16}
        tensors |= {f"{name}.self_attn.{each}_proj.{each}_scale": torch.ones(1) for each in "kv"}
    save_file(tensors, quantised / "model.safetensors", metadata={"format": "pt"})
    describe(
        quantised, quant_algo="MIXED_PRECISION", kv_cache_quant_algo="FP8",
        exclude_modules=["lm_head", "*.mlp.gate"], quantized_layers=listed,
    )  # fmt: skip
    move_scales(quantised)
    tokens, _ = answer(quantised)
    assert tokens == answer(plain)[0]
