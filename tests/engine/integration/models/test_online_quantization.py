"""`--quantization`: matrices of a plain checkpoint are stored in fewer bits as they are loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from atom.checkpoint import open_checkpoint
from atom.config import EngineOptions, build_config
from atom.errors import ConfigError, ModelError
from atom.model_engine.model_runner import ModelRunner
from atom.model_loader.weight_loader import load_model
from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build, Linear
from atom.model_ops.moe.stacked_linear import StackedLinear
from atom.model_ops.quantised.dequantise import plain as dequantised
from atom.models.decoder.causal_lm import CausalLM
from atom.models.registry import build_model, model_spec
from benchmarks.workloads.shapes import SHAPES, write_shape
from tests.engine.integration.models.test_quantised_checkpoints import GPT_OSS, prompts
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

METHODS = ("fp8", "int8", "mxfp4")
BOUNDS = {"fp8": 0.04, "int8": 0.02, "mxfp4": 0.16}  # of a matrix' relative error


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    return make_tiny_checkpoint(folder, "qwen3", hidden=128, head_dim=32, intermediate=320)


def loaded(folder: Path, method: str | None) -> CausalLM:
    """The model as it is stored, before a backend prepares it."""
    config = build_config(EngineOptions.of(model=str(folder), quantization=method, device="cpu"))
    spec = model_spec(config.model)
    case = spec.op_case(torch.float32, torch.float32, 16)
    model = build_model(spec, Build(resolve_ops("cpu", case, "torch_ref").ops))
    load_model(model, open_checkpoint(folder), lambda share: None)
    return model


def meta_model(folder: Path, method: str) -> CausalLM:
    config = build_config(EngineOptions.of(model=str(folder), quantization=method, device="cpu"))
    spec = model_spec(config.model)
    case = spec.op_case(torch.bfloat16, torch.bfloat16, 16)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            return build_model(spec, Build(resolve_ops("cpu", case, "torch_ref").ops))
    finally:
        torch.set_default_dtype(previous)


@pytest.mark.parametrize("method", METHODS)
def test_the_planned_bytes_are_those_that_are_allocated(tmp_path: Path, method: str) -> None:
    folder = write_shape("qwen3-8b", tmp_path)
    config = build_config(EngineOptions.of(model=str(folder), quantization=method, device="cpu"))
    model = meta_model(folder, method)
    assert sum(p.nbytes for p in model.parameters()) == config.model.facts.weight_bytes()


def test_an_engine_makes_what_a_quantised_checkpoint_has(tmp_path: Path) -> None:
    """MXFP4 of Quark and of this option are the same numbers."""
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["quark-mxfp4"])
    folder = make_tiny_checkpoint(
        tmp_path / "same", "qwen3", hidden=128, head_dim=32, intermediate=320
    )
    ours = loaded(folder, "mxfp4")
    config = build_config(EngineOptions.of(model=str(quantised), device="cpu"))
    spec = model_spec(config.model)
    case = spec.op_case(torch.float32, torch.float32, 16)
    theirs = build_model(spec, Build(resolve_ops("cpu", case, "torch_ref").ops))
    load_model(theirs, open_checkpoint(quantised), lambda share: None)
    for (name, one), (_, other) in zip(ours.named_modules(), theirs.named_modules(), strict=True):
        if isinstance(one, Linear):
            assert isinstance(other, Linear)
            pair = [dequantised(module.w, torch.float32) for module in (one, other)]
            assert torch.equal(*pair), name  # there are no ties in random weights


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_those_of_the_reference(plain: Path, method: str) -> None:
    drivers = [
        CoreDriver(str(plain), quantization=method, backend=backend, max_num_batched_tokens=48,
                   max_num_seqs=8)
        for backend in ("torch_ref", "auto")
    ]  # fmt: skip
    asked = prompts(drivers[0].vocab_size)
    one, other = (driver.generate(asked, max_tokens=6, ignore_eos=True) for driver in drivers)
    assert one == other
    whole = CoreDriver(str(plain), backend="torch_ref", max_num_seqs=8)
    reports = [driver.report.weights_bytes for driver in (drivers[0], whole)]
    assert reports[0] < 0.7 * reports[1], "the reference keeps the format"


@pytest.mark.parametrize("method", METHODS)
def test_what_is_stored_is_near_what_was_read(plain: Path, method: str) -> None:
    model, whole = loaded(plain, method), dict(loaded(plain, None).named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            values, wanted = dequantised(module.w, torch.float32), whole[f"{name}.weight"]
            assert (values - wanted).norm() / wanted.norm() < BOUNDS[method]


@pytest.mark.parametrize("architecture", ["gpt_oss", "llama4"])
@pytest.mark.parametrize("method", METHODS)
def test_experts_in_one_tensor_are_near_what_was_read(
    tmp_path: Path, method: str, architecture: Architecture
) -> None:
    folder = make_tiny_checkpoint(
        tmp_path, architecture, hidden=128, head_dim=32, intermediate=320, extra=GPT_OSS
    )
    model, whole = loaded(folder, method), dict(loaded(folder, None).named_parameters())
    stacks = [(n, m) for n, m in model.named_modules() if isinstance(m, StackedLinear)]
    assert stacks
    for name, stack in stacks:
        for expert, wanted in enumerate(whole[f"{name}.weight"]):
            values = dequantised(stack.w.of(expert), torch.float32)
            assert (values - wanted).norm() / wanted.norm() < BOUNDS[method]


def test_dummy_weights_may_be_quantised(plain: Path) -> None:
    for method in METHODS:
        driver = CoreDriver(str(plain), quantization=method, load_dummy=True, backend="torch_ref")
        assert driver.generate([[5, 6, 7]], max_tokens=2, ignore_eos=True)[0]


def test_a_checkpoint_that_is_quantised_already_is_refused(tmp_path: Path) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["awq"])
    with pytest.raises(ConfigError, match=r"quantised already, as int4 in groups of 32 \(awq\)"):
        build_config(EngineOptions.of(model=str(quantised), quantization="fp8"))


def test_shapes_that_a_format_cannot_hold_are_refused_before_weights_are_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPES["tiny"], "intermediate_size": 776}))
    options = EngineOptions.of(model=str(tmp_path), quantization="mxfp4", device="cpu")
    with pytest.raises(ModelError, match=r"mlp\.down_proj: its 776 of 776 inputs are no whole"):
        ModelRunner(build_config(options)).initialize(lambda phase, share: None)


def test_unknown_methods_are_refused_by_name(plain: Path) -> None:
    words = r"quantization int3: .* is a plain checkpoint, which is stored as fp8, int8"
    with pytest.raises(ConfigError, match=words):
        build_config(EngineOptions.of(model=str(plain), quantization="int3"))


BY_LAYER = {
    "global_quant_config": "ptpc_fp8",
    "layer_quant_config": {"*down_proj": "int8", "*.layers.1.mlp*": "mxfp4"},
    "exclude_layer": ["self_attn"],
}


def test_formats_by_layer_are_those_that_were_asked_for(plain: Path) -> None:
    options = EngineOptions.of(model=str(plain), online_quant_config=BY_LAYER, device="cpu")
    facts = build_config(options).model.facts
    first, second = facts.layer(0), facts.layer(1)
    assert {name: str(stored) for name, stored in first.formats} == {
        "mlp.gate_proj": "fp8 with a scale per output (online)",
        "mlp.up_proj": "fp8 with a scale per output (online)",
        "mlp.down_proj": "int8 with a scale per output (online)",
    }
    assert second.format_of("mlp.down_proj") == first.format_of("mlp.down_proj"), "the first rule"
    assert str(second.format_of("mlp.up_proj")) == "fp4 in groups of 32 (online)"


def test_tokens_of_formats_by_layer_are_those_of_the_reference(plain: Path) -> None:
    answers = []
    for backend in ("torch_ref", "auto"):
        driver = CoreDriver(
            str(plain), online_quant_config=BY_LAYER, backend=backend, max_num_seqs=8
        )
        asked = prompts(driver.vocab_size)
        answers.append(driver.generate(asked, max_tokens=6, ignore_eos=True))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "nothing would be quantised"),
        ({"global_quant_config": "fp9"}, "'fp9'; known: fp8, int8"),
        ({"layers": {}}, "layers is not known; known: global_quant_config"),
        ({"global_quant_config": "fp8", "exclude_layer": 5}, "give a list of module names"),
        ({"layer_quant_config": ["*"]}, "give an object"),
        ({"layer_quant_config": {"*": 5}}, "has the format 5"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(
    plain: Path, config: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build_config(EngineOptions.of(model=str(plain), online_quant_config=config, device="cpu"))
