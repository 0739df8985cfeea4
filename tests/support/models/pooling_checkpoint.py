"""Tiny embedding models and rerankers, as they are published, and transformers' answers to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.support.models.tiny_model import make_tiny_checkpoint

_TYPES = "sentence_transformers.models."


def make_embedder(folder: Path, **settings: Any) -> Path:
    """Qwen3-Embedding's form: sentence-transformers' files, and tensors without `model.` and
    head."""
    make_tiny_checkpoint(folder, **{"tie_word_embeddings": True, **settings})
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        bare = {
            name.removeprefix("model."): tensor
            for name, tensor in tensors.items()
            if not name.startswith("lm_head.")
        }
        save_file(bare, file, metadata={"format": "pt"})
    add_modules(folder)
    return folder


def add_modules(folder: Path, *, pooling_mode: str = "lasttoken", normalize: bool = True) -> None:
    rows = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": _TYPES + kind}
        for index, (path, kind) in enumerate(rows[: 3 if normalize else 2])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "lasttoken")
    settings = {f"pooling_mode_{mode}": mode == pooling_mode for mode in modes}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def make_reranker(folder: Path, **settings: Any) -> Path:
    """Qwen3-Reranker's form: a generating model. Its two answers are tokens of the test's own
    vocabulary."""
    return make_tiny_checkpoint(
        folder, **{"extra": {"classifier_from_token": ["n", "y"]}, **settings}
    )


def expected_embedding(folder: Path, token_ids: list[int]) -> NDArray[np.float32]:
    """What transformers has behind the last norm at the last token, of length 1. The tensors of an
    embedder have other names than its class wants, so that they are given to it here."""
    hidden = _model(folder).model(torch.tensor([token_ids])).last_hidden_state[0, -1]
    vector: NDArray[np.float32] = torch.nn.functional.normalize(hidden, dim=-1).detach().numpy()
    return vector


def expected_score(folder: Path, token_ids: list[int], no: int, yes: int) -> float:
    """The share of yes between yes and no, of transformers' logits behind the last token."""
    logits = _model(folder)(torch.tensor([token_ids])).logits[0, -1]
    return float(logits[[no, yes]].detach().softmax(-1)[1])


def _model(folder: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for file in folder.glob("*.safetensors"):
        named = {
            name if name.startswith(("model.", "lm_head.")) else f"model.{name}": tensor
            for name, tensor in load_file(file).items()
        }
        unexpected = model.load_state_dict(named, strict=False).unexpected_keys
        assert not unexpected, unexpected
    return model
