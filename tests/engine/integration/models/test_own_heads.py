"""A head that differs from the embedding is used whatever config.json says of both, as in
transformers."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.errors import ModelError
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.multimodal_checkpoint import make_multimodal_checkpoint
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 120, "max_num_seqs": 2, "max_num_batched_tokens": 32, "max_model_len": 256,
}  # fmt: skip
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=0)


def edit(folder: Path, **changes: object) -> None:
    """Change fields of config.json; ... leaves one out."""
    file = folder / "config.json"
    said = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in said.items() if value is not ...}))


def check(folder: Path, model: torch.nn.Module) -> None:
    """Hold the engine's log-probabilities to the model's."""
    engine = CoreDriver(str(folder), **OPTIONS)
    draw = random.Random(2)
    prompt = [draw.randrange(3, 250) for _ in range(40)]
    (told,) = engine.generate_each([(prompt, PARAMS, None)])
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + told])).logits[0, len(prompt) - 1 : -1]
    wanted = logits.log_softmax(-1)[range(len(told)), told].tolist()
    assert [entry.logprob for entry in engine.logprobs[0]] == pytest.approx(wanted, abs=2e-3)


@pytest.mark.sampled(6)
@pytest.mark.singles
@pytest.mark.parametrize("said", [True, "absent", None, False])
@pytest.mark.parametrize("family", get_args(Architecture))
def test_a_head_of_its_own_is_used(
    family: Architecture, said: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_tiny_checkpoint(tmp_path, family, layers=3, extra={"tie_word_embeddings": False})
    edit(tmp_path, tie_word_embeddings=... if said == "absent" else said)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=torch.float32
        ).eval()
    except Exception:
        return  # transformers itself refuses null
    with caplog.at_level(logging.INFO):
        check(tmp_path, model)
    if said is True and family not in ("nemotron_h", "kimi_linear"):  # which never tie
        assert "lm_head.weight differs from the embedding" in caplog.text


@pytest.mark.parametrize("family", ["qwen3", "lfm2", "gemma2"])
def test_a_copy_of_the_embedding_is_tied(
    family: Architecture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_tiny_checkpoint(tmp_path, family, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    save_file({**tensors, "lm_head.weight": tensors[name].clone()}, file)
    with caplog.at_level(logging.INFO):
        check(tmp_path, transformers.AutoModelForCausalLM.from_pretrained(tmp_path).float().eval())
    assert "differs from the embedding" not in caplog.text


def test_the_head_of_a_multimodal_checkpoint_is_used(tmp_path: Path) -> None:
    model = make_multimodal_checkpoint(tmp_path, "qwen3-vl", tie_word_embeddings=False)
    edit(tmp_path, tie_word_embeddings=True)
    with torch.no_grad():
        torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "lm_head.weight": model.lm_head.weight.detach().clone()},
        tmp_path / "model.safetensors",
    )
    check(tmp_path, model)


@pytest.mark.parametrize("family", ["nemotron_h", "kimi_linear"])
def test_a_class_that_never_ties_needs_its_head(family: Architecture, tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, family, layers=3)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file)
    edit(tmp_path, tie_word_embeddings=True)
    with pytest.raises(ModelError, match=r"in none of its files of weights, first lm_head"):
        CoreDriver(str(tmp_path), **OPTIONS)
