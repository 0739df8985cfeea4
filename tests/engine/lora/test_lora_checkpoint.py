"""What an adapter's files may not say is refused by its name, before a weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom.errors import AdapterError, ConfigError
from atom.lora_checkpoint import CONFIG_FILE, WEIGHTS_FILE, read_adapter_config
from atom.lora_config import LoraConfig, lora_config
from atom.model_engine.runner.lora_adapters import LoraAdapters
from atom.sizing.options.lora import LoraFlags
from tests.engine.lora.test_lora_parity import OPTIONS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint

REFUSED: dict[str, Any] = {
    "use_dora": True,
    "modules_to_save": ["lm_head"],
    "trainable_token_indices": [1, 2],
    "layer_replication": [[0, 1], [0, 1]],
    "lora_bias": True,
    "use_qalora": True,
    "use_bdlora": {"match_strict": True},
    "alora_invocation_tokens": [5],
    "arrow_config": {"top_k": 2},
    "kasa_config": {"beta": 1},
    "monteclora_config": {"num_samples": 2},
    "bias": "all",
    "init_lora_weights": "pissa_niter_4",
    "peft_type": "IA3",
    "r": 0,
    "lora_alpha": "many",
    "rank_pattern": {"q_proj": 99},
    "alpha_pattern": {"(": 1},
    "target_parameters": 5,
}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    return make_adapter(folder / "adapter", make_tiny_checkpoint(folder / "model"))


@pytest.fixture(scope="module")
def adapters(adapter: Path) -> LoraAdapters:
    model = str(adapter.parent / "model")
    engine = CoreDriver(model, lora=LoraConfig(max_rank=8), **OPTIONS)
    found = engine.executor.runner.adapters  # type: ignore[attr-defined]
    assert isinstance(found, LoraAdapters)
    return found


def copy_of(adapter: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    said = json.loads((adapter / CONFIG_FILE).read_text()) | changes
    (folder / CONFIG_FILE).write_text(json.dumps(said))
    (folder / WEIGHTS_FILE).write_bytes((adapter / WEIGHTS_FILE).read_bytes())
    return folder


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_would_change_the_answer_is_refused(
    field: str, adapter: Path, tmp_path: Path
) -> None:
    folder = copy_of(adapter, tmp_path / "changed", **{field: REFUSED[field]})
    with pytest.raises(AdapterError, match=rf"{CONFIG_FILE}.*({field}|rank 99)"):
        read_adapter_config(folder, most_rank=8)


NAMES = {
    "base_model.model.lm_head.lora_A.weight": "embeddings and output heads",
    "base_model.model.model.embed_tokens.lora_embedding_A": "embeddings and output heads",
    "base_model.model.model.layers.0.mlp.experts.3.down_proj.lora_A.weight": "experts",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": "DoRA",
    "base_model.model.model.layers.0.mlp.gate.lora_A.weight": "routers",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias": "biases",
    "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": "no matrix of this model",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_without_a_place_is_refused_by_name(
    name: str, adapter: Path, adapters: LoraAdapters, tmp_path: Path
) -> None:
    folder = copy_of(adapter, tmp_path / "changed")
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({**tensors, name: torch.zeros(4, 64)}, folder / WEIGHTS_FILE)
    with pytest.raises(AdapterError, match=rf"{name}.*{NAMES[name]}"):
        adapters.read(str(folder))


PATTERNS = {
    "([a-z_.0-9]+)+!": "",  # which Python's own engine would search by for ever
    "(?<=a)q_proj": "linear time",
    "(": "linear time",
    f"({'a' * 5000})": "longer than",
}


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_searched_in_linear_time_or_refused(
    field: str, pattern: str, adapter: Path, adapters: LoraAdapters, tmp_path: Path
) -> None:
    folder = copy_of(adapter, tmp_path / "changed", **{field: {pattern: 4}})
    if not PATTERNS[pattern]:
        assert adapters.read(str(folder)).by_linear
        return
    with pytest.raises(AdapterError, match=f"{CONFIG_FILE}: {field} .*{PATTERNS[pattern]}"):
        adapters.read(str(folder))


@pytest.mark.parametrize("alpha", ["NaN", "Infinity", "1e999"])
def test_a_scale_that_is_no_number_is_refused(alpha: str, adapter: Path, tmp_path: Path) -> None:
    folder = copy_of(adapter, tmp_path / "changed", lora_alpha=4321)
    said = (folder / CONFIG_FILE).read_text().replace("4321", alpha)
    (folder / CONFIG_FILE).write_text(said)
    with pytest.raises(AdapterError, match="lora_alpha must be a finite number"):
        read_adapter_config(folder, most_rank=8)


def test_a_file_without_a_tensor_is_refused(
    adapter: Path, adapters: LoraAdapters, tmp_path: Path
) -> None:
    folder = copy_of(adapter, tmp_path / "empty")
    save_file({}, folder / WEIGHTS_FILE)
    with pytest.raises(AdapterError, match="no tensor, so the adapter would change nothing"):
        adapters.read(str(folder))


def test_a_matrix_under_two_names_is_refused(
    adapter: Path, adapters: LoraAdapters, tmp_path: Path
) -> None:
    folder = copy_of(adapter, tmp_path / "twice")
    tensors = load_file(folder / WEIGHTS_FILE)
    first = next(iter(tensors))
    again = first.removeprefix("base_model.model.")
    save_file({**tensors, again: tensors[first].clone()}, folder / WEIGHTS_FILE)
    with pytest.raises(AdapterError, match="which are one matrix here"):
        adapters.read(str(folder))


def test_damaged_files_are_refused(adapter: Path, adapters: LoraAdapters, tmp_path: Path) -> None:
    tensors = load_file(adapter / WEIGHTS_FILE)
    first = next(name for name in tensors if "lora_A" in name)
    without = copy_of(adapter, tmp_path / "half")
    save_file(
        {name: each for name, each in tensors.items() if name != first}, without / WEIGHTS_FILE
    )
    with pytest.raises(AdapterError, match="has no lora_A"):
        adapters.read(str(without))
    nan = copy_of(adapter, tmp_path / "nan")
    save_file({**tensors, first: tensors[first] * float("nan")}, nan / WEIGHTS_FILE)
    with pytest.raises(AdapterError, match="no numbers"):
        adapters.read(str(nan))
    cut = copy_of(adapter, tmp_path / "cut")
    (cut / WEIGHTS_FILE).write_bytes((adapter / WEIGHTS_FILE).read_bytes()[:-100])
    with pytest.raises(AdapterError, match="truncated"):
        adapters.read(str(cut))
    (cut / WEIGHTS_FILE).rename(cut / "adapter_model.bin")
    with pytest.raises(AdapterError, match="may run code"):
        adapters.read(str(cut))


def test_flags_go_together() -> None:
    assert lora_config(LoraFlags()) is None
    both = lora_config(LoraFlags(enabled=True, modules=["a=/x", '{"name": "b", "path": "/y"}']))
    assert both is not None
    assert [(each.name, each.path) for each in both.modules] == [("a", "/x"), ("b", "/y")]
    assert (both.max_loras, both.max_cpu_loras, both.max_rank) == (1, 2, 16)
    wrong: list[tuple[bool, dict[str, Any], str]] = [
        (False, {"modules": ["a=/x"]}, "--enable-lora"),
        (True, {"modules": ["a=/x", "a=/y"]}, "twice"),
        (True, {"modules": ["m=/x"]}, "m is the model's own name"),
        (True, {"modules": ["a"]}, "name=path"),
        (True, {"modules": ["a b=/x"]}, "letters, digits and characters of"),
        (True, {"modules": ["a=/x", "b=/y"], "max_cpu_loras": 1}, "raise it"),
        (True, {"max_loras": 3, "max_cpu_loras": 2}, "--max-cpu-loras"),
        (True, {"max_rank": 0}, "--max-lora-rank"),
        (True, {"max_loras": 0}, "--max-loras"),
    ]
    for enabled, said, words in wrong:
        with pytest.raises(ConfigError, match=words):
            lora_config(LoraFlags(enabled=enabled, **said), ["m"])
