"""Checkpoints that benchmarks write are read whole by transformers and by the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from atom.sampling_params import SamplingParams
from atom.sizing import ModelFacts
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.workloads import checkpoints
from benchmarks.workloads.shapes import SHAPES

# One shape of each way in which weights are named and stacked, and its model_type.
KINDS = {
    "qwen3-0.6b": "qwen3",
    "llama-3.1-8b": "llama",
    "qwen3-30b-a3b": "qwen3_moe",
    "deepseek-v2-lite": "deepseek_v2",
    "gpt-oss-20b": "gpt_oss",
}
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 256,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}


def small(name: str) -> dict[str, Any]:
    """A published shape with few and narrow layers."""
    shape = SHAPES[name]
    return {**shape, **{key: value for key, value in _SMALL.items() if key in shape}}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_shape_is_one_that_the_engine_reads(name: str) -> None:
    facts = ModelFacts.from_hf_config(SHAPES[name])
    assert facts.num_layers == SHAPES[name]["num_hidden_layers"]


@pytest.mark.parametrize("name", KINDS)
def test_transformers_finds_every_weight_and_no_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {**small(name), "model_type": KINDS[name]}
    monkeypatch.setitem(checkpoints.SHAPES, "small", shape)
    folder = checkpoints.write_checkpoint("small", tmp_path, layers=2)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    _, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info


@pytest.mark.parametrize("name", [*KINDS, "gpt-oss-20b-mxfp4", "llama4-scout"])
def test_the_engine_runs_what_was_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checkpoints.SHAPES, "small", small(name))
    folder = checkpoints.write_checkpoint("small", tmp_path, layers=2)
    engine = OfflineEngine(str(folder), device="cpu", max_model_len=64, max_num_seqs=4)
    engine.add([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    assert engine.run() == 4
    engine.close()


def test_a_form_that_is_not_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoints in awq are not written here"):
        checkpoints.write_checkpoint("qwen3-8b-awq", tmp_path)


def test_a_shape_in_another_format_is_refused_with_those_that_are_written(tmp_path: Path) -> None:
    others = set(checkpoints.SHAPES) - set(checkpoints.WRITTEN_SHAPES)
    assert others == {"qwen3-8b-awq", "qwen3-8b-gptq-ordered", "qwen3-8b-mxfp4"}
    for name in others:
        with pytest.raises(ValueError, match=f"{name}: .* choose one of .*gpt-oss-20b-mxfp4"):
            checkpoints.write_checkpoint(name, tmp_path)
