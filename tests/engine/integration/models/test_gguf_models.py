"""A model in a GGUF file answers as the checkpoint that it was made of, which is loaded beside it.

Of each architecture, kind of rope and type of weights; by one rank and by two; with the tokenizer
and the chat template out of the file. The checkpoints are held to transformers elsewhere.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from atom.checkpoint import open_checkpoint
from atom.config import EngineOptions, build_config
from atom.entrypoints.inspect_model import main as inspect
from atom.errors import ModelError
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.sizing import ModelFacts
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.gguf_model import write_gguf
from tests.support.models.parameter_count import parameter_count
from tests.support.models.tiny_model import LLAMA3_ROPE_SCALING, make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup

OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 40, "max_num_seqs": 8, "max_num_batched_tokens": 48, "max_model_len": 128,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
# As published: in files of llama.cpp these numbers are in nothing but the frequencies' factors.
LLAMA3 = {**LLAMA3_ROPE_SCALING, "original_max_position_embeddings": 8192}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama, tied, three heads of keys": {
        "architecture": "llama", "tie_word_embeddings": True, "heads": 6, "kv_heads": 3,
        "hidden": 96, "head_dim": 40,
    },
    "llama 3.1's rope": {
        "architecture": "llama", "rope_scaling": LLAMA3, "rope_theta": 500_000.0, "head_dim": 32,
    },
    "linear rope": {
        "architecture": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "head_dim": 32},
    "qwen3, yarn": {"architecture": "qwen3", "rope_scaling": YARN},
}  # fmt: skip


def prompts(vocab_size: int = 290) -> list[list[int]]:
    draw = np.random.default_rng(5)
    return [draw.integers(3, vocab_size, size=length).tolist() for length in (1, 16, 60)]


def greedy(model: Path, **options: Any) -> list[list[int]]:
    driver = CoreDriver(str(model), **OPTIONS, **options)
    return driver.generate(prompts(), max_tokens=10, ignore_eos=True)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", **MODELS[name])
    model = write_gguf(checkpoint, tmp_path / "model.gguf")
    assert greedy(model) == greedy(checkpoint)
    ours, theirs = (open_checkpoint(path).config for path in (model, checkpoint))
    facts, wanted = map(ModelFacts.from_hf_config, (ours, theirs))
    assert facts.weight_bytes() == wanted.weight_bytes()
    assert parameter_count(facts) == parameter_count(wanted)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_weights_answer_as_what_they_stand_for(tmp_path: Path, kind: str) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama")
    model = write_gguf(checkpoint, tmp_path / "model.gguf", matrices=kind)
    rounded(checkpoint, kind)
    assert greedy(model, dtype="float32") == greedy(checkpoint, dtype="float32")


def rounded(checkpoint: Path, kind: str) -> None:
    """Make a checkpoint's matrices what their quantised form stands for. (What llama.cpp permutes
    is rows, and blocks are within rows.)"""
    file, of_kind = checkpoint / "model.safetensors", GGMLQuantizationType[kind]
    tensors = {
        name: torch.from_numpy(dequantize(quantize(values.numpy(), of_kind), of_kind).copy())
        if values.dim() > 1
        else values
        for name, values in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_two_ranks_answer_as_one(tmp_path: Path, pair: RankGroup, architecture: Any) -> None:
    """Each reads its own rows and columns: whole heads of what is permuted, parts of blocks."""
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", architecture, intermediate=96)
    model = write_gguf(checkpoint, tmp_path / "model.gguf", matrices="Q8_0")
    options = {**OPTIONS, "dtype": "float32"}
    together = pair.driver(str(model), **options)
    found = together.generate(prompts(), max_tokens=10, ignore_eos=True)
    together.close()
    alone = CoreDriver(str(model), **options)
    assert found == alone.generate(prompts(), max_tokens=10, ignore_eos=True)
    assert together.report.weights_bytes < alone.report.weights_bytes


def test_what_weights_take_is_what_they_are_dequantised_to(tmp_path: Path) -> None:
    """16 bits for each, unless all matrices are in one type; the device decides on \"auto\"."""
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama")
    expected = {"Q8_0": "bfloat16", "F16": "float16", "F32": "float32", "BF16": "bfloat16"}
    for kind, dtype in expected.items():
        model = write_gguf(checkpoint, tmp_path / f"{kind}.gguf", matrices=kind)
        assert open_checkpoint(model).config["dtype"] == dtype
        found, wanted = (
            CoreDriver(str(path), dtype=dtype, **OPTIONS).report for path in (model, checkpoint)
        )
        assert found.weights_bytes == wanted.weights_bytes


def test_texts_and_chats_are_the_checkpoints(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama")
    model = write_gguf(checkpoint, tmp_path / "model.gguf")
    ours, theirs = (
        InputOutputProcessor(build_config(EngineOptions.of(model=str(path), device="cpu")))
        for path in (model, checkpoint)
    )
    assert ours.tokenizer is not None
    assert theirs.tokenizer is not None
    text = "hello world, and the <|im_end|> 12 \u4f60\u597d"
    ids = ours.tokenizer.encode(text, add_special_tokens=True)
    assert ids == theirs.tokenizer.encode(text, add_special_tokens=True)
    assert ours.tokenizer.decode(ids, skip_special_tokens=False) == text
    chat = [{"role": "user", "content": "hello"}]
    assert ours.render_chat(chat) == theirs.render_chat(chat)
    config = build_config(EngineOptions.of(model=str(model), device="cpu"))
    ends = [ours.tokenizer.special_token_id(text) for text in ("<|im_end|>", "<|endoftext|>")]
    assert list(config.model.eos_token_ids) == ends


def test_another_tokenizer_may_be_given(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama")
    changes = {"tokenizer.ggml.pre": "kimi-k9"}
    model = write_gguf(checkpoint, tmp_path / "model.gguf", changes=changes)
    words = r"tokenizer\.ggml\.pre is 'kimi-k9', and known are gpt-2, .*--tokenizer FOLDER"
    options = EngineOptions.of(model=str(model), device="cpu")
    with pytest.raises(ModelError, match=words):
        InputOutputProcessor(build_config(options))
    options = EngineOptions.of(model=str(model), tokenizer=str(checkpoint), device="cpu")
    processor = InputOutputProcessor(build_config(options))
    assert processor.render_chat([{"role": "user", "content": "hello"}]).endswith("assistant\n")


def test_plain_weights_of_a_file_may_be_quantised_as_they_are_loaded(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama", hidden=128)
    model = write_gguf(checkpoint, tmp_path / "model.gguf")
    assert greedy(model, quantization="fp8") == greedy(checkpoint, quantization="fp8")


def test_weights_that_are_missing_or_left_over_are_named(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama")
    for layers, words in ((3, "9 tensors of the model are in none"), (1, "are no part of a Llama")):
        changes = {"llama.block_count": layers}
        model = write_gguf(checkpoint, tmp_path / f"{layers}.gguf", changes=changes)
        with pytest.raises(ModelError, match=rf"{layers}\.gguf: {words}|{words}"):
            CoreDriver(str(model), **OPTIONS)


def test_the_operator_is_told_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "qwen3")
    model = write_gguf(checkpoint, tmp_path / "model.gguf", matrices="Q4_1")
    assert inspect(["--model", str(model)]) == 0
    packed = json.loads(capsys.readouterr().out)["config"]
    found = json.loads(zlib.decompress(b64decode(packed)))
    assert found["architectures"] == ["Qwen3ForCausalLM"]
    assert found["dtype"] == "bfloat16"


def test_a_folder_of_files_says_to_give_one(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "checkpoint", "llama")
    folder = tmp_path / "models"
    folder.mkdir()
    model = write_gguf(checkpoint, folder / "model.gguf")
    with pytest.raises(ModelError, match=rf"holds GGUF files; give one of them, such as {model}"):
        open_checkpoint(folder)
