"""Prompts of embedding models: which text stands in front of the inputs of a request.

sentence-transformers' files name them; a request selects one by its name or by the role of its
texts. Served vectors are those of transformers for the prompt and the text together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atom.config import EngineOptions, build_config
from atom.errors import ModelError, RequestError
from atom.pooling_config.embedding_prompts import EmbeddingPrompts, InputType, read_prompts
from atom.tokenizer import Tokenizer
from tests.support.models.encoder_checkpoints import expected_vector, make_sentence_encoder
from tests.support.models.pooling_checkpoint import expected_embedding, make_embedder
from tests.support.server.http_app import HttpRig, serve_model

OPTIONS: dict[str, Any] = {
    "device": "cpu", "served_model_name": "tiny", "num_kv_blocks": 64, "max_num_seqs": 8,
    "max_num_batched_tokens": 96, "max_model_len": 64,
}  # fmt: skip
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
PROMPTS = {"query": "is: ", "passage": "the ", "Clustering": "in, "}
TEXTS = ["what is the engine", "tea"]
MAKERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path, list[int]], NDArray[Any]]]] = {
    "encoder": (lambda folder: make_sentence_encoder(folder, "bert"), expected_vector),
    "decoder": (make_embedder, expected_embedding),
}


def say(folder: Path, **fields: Any) -> Path:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("kind", MAKERS)
async def test_the_selected_prompt_is_in_front_of_each_text(tmp_path: Path, kind: str) -> None:
    make, expected = MAKERS[kind]
    folder = say(make(tmp_path), prompts=PROMPTS, default_prompt_name="passage")
    tokenizer = Tokenizer(folder)

    async def check(rig: HttpRig, prompt: str, **fields: Any) -> None:
        answer = await rig.post("/v1/embeddings", input=TEXTS, **fields)
        assert answer.status_code == 200, answer.text
        for text, each in zip(TEXTS, answer.json()["data"], strict=True):
            ids = tokenizer.encode(prompt + text, add_special_tokens=True)
            np.testing.assert_allclose(each["embedding"], expected(folder, ids), **CLOSE)

    async with serve_model(build_config(EngineOptions.of(model=str(folder), **OPTIONS))) as rig:
        await check(rig, "the ")
        await check(rig, "is: ", prompt_name="query")
        await check(rig, "is: ", input_type="search_query")
        await check(rig, "the ", input_type="search_document")
        await check(rig, "in, ", input_type="clustering")
        ids = tokenizer.encode(TEXTS[0], add_special_tokens=True)
        whole = (await rig.post("/v1/embeddings", input=ids)).json()["data"][0]["embedding"]
        np.testing.assert_allclose(whole, expected(folder, ids), **CLOSE)
        scored = await rig.post("/v1/score", text_1=TEXTS[0], text_2=TEXTS[1])
        first, second = (
            expected(folder, tokenizer.encode(f"the {text}", add_special_tokens=True))
            for text in TEXTS
        )
        np.testing.assert_allclose(scored.json()["data"][0]["score"], first @ second, **CLOSE)
        for fields, words in (
            ({"prompt_name": "passages"}, "the prompts query, passage, Clustering"),
            ({"prompt_name": "query", "input_type": "query"}, "send one of them"),
            ({"input": ids, "prompt_name": "query"}, "has token ids"),
            ({"input_type": "question"}, "input_type"),
        ):
            refused = await rig.post("/v1/embeddings", **{"input": "tea", **fields})
            assert refused.status_code == 400
            assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("texts", "default", "input_type", "found"),
    [
        ({"query": "q", "corpus": "c", "passage": "p", "document": "d"}, None, "passage", "d"),
        ({"query": "q", "corpus": "c", "passage": "p"}, None, "document", "p"),
        ({"query": "q", "corpus": "c"}, None, "search_document", "c"),
        ({"query": "q"}, None, "search_document", ""),  # such a model's documents stand alone
        ({"query": "q"}, "query", "classification", "q"),
        ({"classification": "c"}, None, "classification", "c"),
        ({}, None, "query", ""),
        ({"query": "q"}, None, None, ""),
    ],
)
def test_a_role_selects_its_prompt_or_the_default(
    texts: dict[str, str], default: str | None, input_type: InputType | None, found: str
) -> None:
    assert EmbeddingPrompts(texts=texts, default=default).text(None, input_type) == found


def test_a_model_without_prompts_says_so(tmp_path: Path) -> None:
    prompts = read_prompts(say(tmp_path, prompts=None), pooled=True)
    with pytest.raises(RequestError, match="no prompts: leave prompt_name out"):
        prompts.text("query", None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompts": {"query": "q"}, "default_prompt_name": "queries"}, "prompts has query"),
        ({"prompts": ["query"]}, "names and texts"),
        ({"prompts": {"query": 1}}, "names and texts"),
    ],
)
def test_damaged_prompts_are_refused_at_start(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    folder = say(make_sentence_encoder(tmp_path, "bert"), **fields)
    with pytest.raises(ModelError, match=words):
        build_config(EngineOptions.of(model=str(folder), **OPTIONS))


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token"])
def test_a_prompt_that_is_not_pooled_is_refused_unless_one_token_is(
    tmp_path: Path, mode: str
) -> None:
    folder = make_sentence_encoder(tmp_path, "bert", pooling_mode=mode)
    file = folder / "1_Pooling" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "include_prompt": False}))

    def prompts() -> EmbeddingPrompts:
        model = build_config(EngineOptions.of(model=str(folder), **OPTIONS)).model
        assert model.pooling is not None
        return model.pooling.prompts

    say(folder, prompts={"query": "is: ", "document": ""})
    assert prompts().text(None, None) == prompts().text("document", None) == ""
    if mode == "cls_token":
        assert prompts().text("query", None) == "is: "
        return
    with pytest.raises(RequestError, match="include_prompt is false"):
        prompts().text("query", None)
    say(folder, prompts={"query": "is: "}, default_prompt_name="query")
    with pytest.raises(ModelError, match="include_prompt is false"):
        prompts()
