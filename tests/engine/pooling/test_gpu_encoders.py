"""On a GPU: text encoders of a whole server give transformers' vectors and scores, in float32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atom.config import Config, EngineOptions, build_config
from tests.support.models.encoder_checkpoints import (
    FAMILIES,
    expected_label,
    expected_vector,
    make_encoder,
    make_sentence_encoder,
)
from tests.support.server.http_app import serve_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}
QUERY = "what is the engine"
DOCUMENTS = ["the engine is in tea, what?", "x", "", "what is the engineing and longer 12345"]
SIZES: dict[str, Any] = {
    "num_attention_heads": 6, "hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 80,
    "max_position_embeddings": 66,
}  # fmt: skip


def built(folder: Path) -> Config:
    return build_config(
        EngineOptions.of(
            model=str(folder), device="auto", dtype="float32", served_model_name="tiny",
            num_kv_blocks=24, max_num_seqs=8, max_num_batched_tokens=96,
        )
    )  # fmt: skip


@pytest.mark.parametrize("tokens", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_vectors_equal_transformers(tmp_path: Path, family: str, tokens: str) -> None:
    """Prompts of all lengths, several in a step."""
    mode = {"cls": "cls_token", "mean": "mean_tokens"}[tokens]
    folder = make_sentence_encoder(tmp_path, family, pooling_mode=mode, **SIZES)
    config = built(folder)
    longest, size = config.model.max_model_len, config.model.vocab_size
    draw = random.Random(f"vectors of {family}")
    lengths = [longest, 1, 2, *(draw.randint(1, longest) for _ in range(9)), longest - 1]
    prompts = [[draw.randrange(4, size) for _ in range(length)] for length in lengths]
    async with serve_model(config) as rig:
        answer = await rig.post("/v1/embeddings", input=prompts)
    assert answer.status_code == 200, answer.text
    for prompt, found in zip(prompts, answer.json()["data"], strict=True):
        wanted = expected_vector(folder, prompt, tokens)
        np.testing.assert_allclose(found["embedding"], wanted, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
async def test_scores_equal_transformers(tmp_path: Path, family: str) -> None:
    folder = make_encoder(tmp_path, family, head=True, **SIZES)
    labels = [expected_label(folder, QUERY, document) for document in DOCUMENTS]
    wanted = [1 / (1 + np.exp(-label)) for label in labels]
    async with serve_model(built(folder)) as rig:
        answer = await rig.post("/score", text_1=QUERY, text_2=DOCUMENTS)
    assert answer.status_code == 200, answer.text
    scores = [each["score"] for each in answer.json()["data"]]
    np.testing.assert_allclose(scores, wanted, **CLOSE)
