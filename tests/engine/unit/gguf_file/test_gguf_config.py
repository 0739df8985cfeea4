"""The metadata of a GGUF file become the configuration of its checkpoint, or are refused by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from atom.config import EngineOptions, build_config
from atom.errors import ModelError
from atom.gguf_file.header import read_header
from atom.gguf_file.model_config import model_config
from tests.support.models.gguf_model import write_gguf
from tests.support.models.tiny_model import LLAMA3_ROPE_SCALING, make_tiny_checkpoint

ALIKE = (
    "architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps",
    "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "vocab_size",
    "tie_word_embeddings",
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama", layers=1)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_fields_are_the_checkpoints(tmp_path: Path, architecture: Any, tied: bool) -> None:
    folder = make_tiny_checkpoint(
        tmp_path / "checkpoint", architecture, tie_word_embeddings=tied, rope_theta=1e6
    )
    found = model_config(read_header(write_gguf(folder, tmp_path / "model.gguf")))
    theirs = json.loads((folder / "config.json").read_text())
    assert {key: found[key] for key in ALIKE} == {key: theirs[key] for key in ALIKE}
    assert found["rope_theta"] == 1e6
    assert found["eos_token_id"] == [theirs["eos_token_id"], theirs["bos_token_id"]]
    assert found["dtype"] == "float32"


def test_a_turn_has_an_end_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    changes = {"tokenizer.ggml.eot_token_id": 7}
    model = write_gguf(checkpoint, tmp_path / "model.gguf", changes=changes)
    assert (
        build_config(EngineOptions.of(model=str(model), device="cpu")).model.eos_token_ids[1] == 7
    )


TURN_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>", "<end_of_utterance>", "<EOT>", "<｜end▁of▁sentence｜>",
)  # fmt: skip


@pytest.mark.parametrize("text", TURN_ENDS)
def test_a_turns_end_is_found_by_its_text(text: str, checkpoint: Path, tmp_path: Path) -> None:
    model = write_gguf(checkpoint, tmp_path / "model.gguf")
    texts = read_header(model).metadata["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    named = [*texts[:7], text, *("#" + each if each == text else each for each in texts[8:])]
    changes = {"tokenizer.ggml.tokens": named, "tokenizer.ggml.eos_token_id": 0}
    write_gguf(checkpoint, model, changes=changes)
    found = model_config(read_header(model))["eos_token_id"]
    assert found[0] == 0
    assert 7 in found


def test_factors_of_frequencies_are_llama_3s_or_refused(tmp_path: Path) -> None:
    rope = {**LLAMA3_ROPE_SCALING, "factor": 32.0, "original_max_position_embeddings": 8192}
    folder = make_tiny_checkpoint(
        tmp_path / "checkpoint", "llama", rope_scaling=rope, rope_theta=5e5, head_dim=64
    )
    model = write_gguf(folder, tmp_path / "model.gguf")
    found = model_config(read_header(model))["rope_scaling"]
    assert found == {key: rope[key] for key in found}
    (stored,) = (each for each in GGUFReader(model).tensors if each.name == "rope_freqs.weight")
    content = bytearray(model.read_bytes())
    content[stored.data_offset + 64 : stored.data_offset + 68] = b"\x00\x00\x00\x41"  # 8.0
    model.write_bytes(content)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight holds factors .* Llama 3\.1"):
        model_config(read_header(model))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": (
        {"general.architecture": "mamba"}, "general.architecture is 'mamba'; .* llama, qwen2, qwen3"
    ),
    "an architecture that is no text": ({"general.architecture": 5}, "general.architecture is 5"),
    "no size": ({"llama.embedding_length": None}, "llama.embedding_length is missing; it must be"),
    "a size that is a text": ({"llama.block_count": "2"}, "llama.block_count is '2'"),
    "no layers": ({"llama.block_count": 0}, "llama.block_count is 0"),
    "heads by layer": ({"llama.attention.head_count": [4, 2]}, r"is \[4, 2\]; .* the same"),
    "no epsilon": (
        {"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing",
    ),
    "an epsilon of nothing": (
        {"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon is nan",
    ),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count is 8: a mixture of experts"),
    "windows": ({"llama.attention.sliding_window": 9}, "within a window that is not read"),
    "another scale": ({"llama.attention.scale": 0.5}, "llama.attention.scale is 0.5: a feature"),
    "part of a head turns": ({"llama.rope.dimension_count": 8}, "count is 8; it must be 16"),
    "values of another width": ({"llama.attention.value_length": 8}, "value_length is 8; .* be 16"),
    "a rope that is not known": ({"llama.rope.scaling.type": "longrope"}, "type is 'longrope'; it"),
    "a rope without its factor": ({"llama.rope.scaling.type": "linear"}, "factor is missing"),
    "an end that is a text": ({"tokenizer.ggml.eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    "one of several files": ({"split.count": 3}, "is one of 3 files; join them .*--merge"),
    "a size that no model has": ({"llama.context_length": 2**32 - 1}, "max_position_embeddings is"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused_by_its_key(
    checkpoint: Path, tmp_path: Path, case: str
) -> None:
    changes, words = REFUSED[case]
    model = write_gguf(checkpoint, tmp_path / "model.gguf", changes=changes)
    with pytest.raises(ModelError, match=rf"model\.gguf: .*{words}"):
        build_config(EngineOptions.of(model=str(model), device="cpu"))


def test_a_file_without_an_embedding(checkpoint: Path, tmp_path: Path) -> None:
    model = write_gguf(checkpoint, tmp_path / "model.gguf")
    model.write_bytes(model.read_bytes().replace(b"token_embd.weight", b"token_embx.weight"))
    with pytest.raises(ModelError, match=r"model\.gguf: token_embd\.weight is missing"):
        model_config(read_header(model))
