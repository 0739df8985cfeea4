"""A model that cannot be served is refused with the file and the remedy, before anything runs."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_file_bytes
from safetensors.torch import load_file, save_file

from atom.checkpoint import open_checkpoint
from atom.config import Config, EngineOptions, build_config
from atom.errors import ConfigError, ModelError
from atom.model_engine.model_runner import ModelRunner
from atom.model_loader import weight_loader
from atom.model_loader.load_plan import opened, plan_load
from atom.model_ops.placement import Placement
from atom.utils.device import Device, check_dtype
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.random_search import examples


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("good"), "qwen3")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def config_of(folder: Path, **options: Any) -> Config:
    return build_config(EngineOptions.of(model=str(folder), device="cpu", **options))


def load(folder: Path, **options: Any) -> None:
    ModelRunner(config_of(folder, **options)).initialize(lambda phase, share: None)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere: no such folder; give a checkpoint folder"):
        config_of(tmp_path / "nowhere")


def test_file_instead_of_folder(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"is a file; give the checkpoint's folder"):
        config_of(folder / "config.json")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        config_of(tmp_path)


def test_mistrals_own_form_says_what_is_taken(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    words = r"in Mistral's own form .* which is not read; give .*config\.json and model"
    with pytest.raises(ModelError, match=words):
        config_of(tmp_path)


def test_weights_under_mistrals_names_are_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    words = r"consolidated\.safetensors: holds weights under Mistral's own names, .* not read; add"
    with pytest.raises(ModelError, match=words):
        load(folder)


def test_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read as JSON"):
        config_of(folder)


def test_unsupported_architecture_names_the_supported_ones(folder: Path) -> None:
    edit_config(folder, architectures=["BloomForCausalLM"])
    with pytest.raises(ModelError, match=r"BloomForCausalLM is not supported.*Qwen3ForCausalLM"):
        config_of(folder)


def test_unsupported_architecture_names_the_nearest_that_runs(folder: Path) -> None:
    edit_config(folder, architectures=["Qwen4ForCausalLM"])
    words = (
        r"Qwen4ForCausalLM is not supported; the nearest that runs is Qwen3ForCausalLM \(by name"
    )
    with pytest.raises(ModelError, match=words):
        config_of(folder)


def test_truncated_weights_name_the_file(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"model\.safetensors: is truncated.*download it again"):
        load(folder)


def test_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors: missing"):
        load(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "sharded", "qwen3", shards=2)


def test_one_missing_shard_of_several_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"00002-of-00002\.safetensors: missing; .* incomplete"):
        load(sharded)


def test_a_missing_index_is_named(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"index\.json: missing, although .* model-00001-of-00002"):
        load(sharded)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors"])
def test_an_index_may_not_lead_out_of_the_folder(sharded: Path, name: str) -> None:
    file = sharded / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["model.norm.weight"] = name
    file.write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index\.json: names .* which is no file of this folder"):
        load(sharded)


def test_a_tensor_that_two_shards_hold_is_refused(sharded: Path) -> None:
    first, second = (sharded / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor}, second)
    with pytest.raises(ModelError, match=rf"00002-of-00002.* holds {name}, as model-00001"):
        load(sharded)


def test_a_file_that_cannot_be_read_to_its_end_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(shard: object, name: str, placement: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(weight_loader, "_read", fail)
    with pytest.raises(ModelError, match=r"safetensors: \S+ cannot be read .*check the disk"):
        load(folder)


def test_a_file_is_closed_when_no_thread_reads_it_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed while one does, it says that, and not what went wrong before."""
    reading: list[list[str]] = []

    class Watched:
        def __init__(self, file: Path) -> None:
            self.shard = opened(file)

        def __enter__(self) -> Any:
            return self.shard.__enter__()

        def __exit__(self, *fault: object) -> None:
            names = [thread.name for thread in threading.enumerate()]
            reading.append([name for name in names if name.startswith("read-weights")])
            self.shard.__exit__(*fault)

    def fail(shard: object, name: str, placement: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(weight_loader, "opened", Watched)
    load(folder)
    monkeypatch.setattr(weight_loader, "_read", fail)
    with pytest.raises(ModelError, match=r"cannot be read"):
        load(folder)
    assert reading == [[], []]


@given(data=st.data())
@settings(max_examples=examples(24), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_header_that_was_changed_anywhere_is_refused_or_harmless(
    data: st.DataObject, good: Path
) -> None:
    checkpoint = open_checkpoint(good)
    content = (good / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = bytearray(content[8 : 8 + size])
    place = st.integers(0, size - 1)
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(place)] = data.draw(st.sampled_from(b'0189"{}[],:-AFU_\x00\xff'))
    names = {name: list(tensor.shape) for name, tensor in load_file_bytes(content).items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(content[:8] + header + content[8 + size :])
        changed = replace(checkpoint, path=Path(folder))
        wanted = [Placement.whole(name, torch.empty(shape)) for name, shape in names.items()]
        try:
            plan = plan_load(wanted, changed)
        except ModelError:
            return
        ((_, tensors),) = plan.files.items()
        assert set(tensors) == set(names)


def test_mismatched_shape_names_tensor_and_both_shapes(folder: Path) -> None:
    edit_config(folder, intermediate_size=96)
    with pytest.raises(ModelError, match=r"down_proj.*has shape \[64, 128\].*\[64, 96\]"):
        load(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"first model\.layers\.1\.self_attn\.k_proj\.weight"):
        load(folder)


def test_an_expert_that_is_missing_among_others_is_named(tmp_path: Path) -> None:
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    folder = make_tiny_checkpoint(tmp_path / "moe", "qwen3_moe", extra=experts)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"1 tensors .* first .*1\.mlp\.experts\.2\.up_proj"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ({"n_group": 3}, "n_group 3 does not divide the 8 experts"),
        ({"n_group": 4, "num_experts_per_tok": 3}, "more than the 2 experts that a token"),
    ],
)
def test_a_choice_of_experts_that_cannot_be_made(tmp_path: Path, changes, words) -> None:
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    folder = make_tiny_checkpoint(tmp_path, "glm4_moe", extra=experts)
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=words):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (
            {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e6}},
            "rope type 'mrope' is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}},
            "the parameters of linear rope lack 'factor'",
        ),
    ],
)
def test_field_that_would_change_the_computation(folder: Path, changes, words) -> None:
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=words):
        load(folder)


def test_model_that_does_not_fit_says_the_numbers(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not fit: .* MiB"):
        load(folder, gpu_memory_utilization=1e-6)


CHECKS: list[tuple[dict[str, Any], str]] = [
    ({"max_model_len": 4096}, r"max_model_len 4096 exceeds .* 512; use at most 512"),
    ({"block_size": 12}, r"block_size must be 1 or a multiple of 16, got 12"),
    ({"max_num_batched_tokens": 4}, r"max_num_batched_tokens must be at least 512, got 4"),
    ({"gpu_memory_utilization": 1.5}, r"gpu_memory_utilization must be in \(0, 1\], got 1\.5"),
    (
        {"tensor_parallel_size": 3},
        r"tensor_parallel_size 3: attention heads 4 is not divisible by 3; .* sizes that divide "
        r"this model: 1, 2$",
    ),
    ({"tensor_parallel_size": 0}, r"tensor_parallel_size must be at least 1, got 0"),
    ({"num_kv_blocks": 2}, r"num_kv_blocks 2 holds 32 tokens, fewer than one sequence"),
    ({"num_kv_blocks": 10**9}, r"num_kv_blocks 1000000000 takes [\d,]+ MiB, .* use at most \d+"),
    ({"scheduler_delay_factor": float("nan")}, r"scheduler_delay_factor must be at least 0"),
    ({"max_step_seconds": -0.1}, r"max_step_seconds must be at least 0"),
    ({"stall_seconds": float("inf")}, r"stall_seconds must be at least 2, got inf"),
    ({"backend": "nonesuch"}, r"unknown backend 'nonesuch'; backends: native_cpu, torch_ref"),
    ({"dtype": "int3"}, r"unknown dtype 'int3'"),
    ({"kv_cache_dtype": "int3"}, r"unknown kv_cache_dtype 'int3'"),
]


@pytest.mark.parametrize(("options", "words"), CHECKS)
def test_option_that_cannot_work(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(folder, **options)


def test_absent_device_says_what_is_there(folder: Path) -> None:
    config = build_config(EngineOptions.of(model=str(folder), device="rocm"))
    with pytest.raises(ConfigError, match=r"device rocm: this machine's torch"):
        ModelRunner(config)


def test_a_type_that_the_card_has_no_arithmetic_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Device("cuda", "Tesla T4", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(ConfigError, match=r"bfloat16: Tesla T4 has no .* use --dtype float16"):
        check_dtype(card, torch.bfloat16)
    check_dtype(card, torch.float16)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    check_dtype(card, torch.bfloat16)


def test_config_crosses_to_the_engine_process_unchanged(folder: Path) -> None:
    config = config_of(folder, op_backends={"linear": "torch_ref"})
    assert Config.from_json(config.to_json()) == config


def test_a_left_over_tensor_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.experts.0.up_proj.weight"] = torch.zeros(2, 2)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # of old checkpoints
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"1 tensors .* first model\.layers\.1\.mlp\.experts\.0"):
        load(folder)


def test_a_quantised_tensor_without_a_word_in_the_config_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"down_proj\.weight holds float8_e4m3fn, .* quantised"):
        load(folder)
