"""/v1/embeddings, /v1/score and /v1/rerank of a whole server, against transformers.

The official client, every form of input and answer, two copies of the model and two ranks of one,
and what is refused.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ollama import AsyncClient, ResponseError

from atom.config import EngineOptions, build_config
from atom.entrypoints.pooling.reranker_prompt import reranker_parts
from atom.errors import ConfigError, ModelError
from atom.model_engine.runner.pooling_step_runner import score_tokens
from atom.tokenizer import Tokenizer
from tests.support.models.pooling_checkpoint import (
    add_modules,
    expected_embedding,
    expected_score,
    make_embedder,
    make_reranker,
)
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model
from tests.support.server.pooling_examples import EXAMPLES
from tests.support.waiting import eventually

SERVED = "tiny"
OPTIONS: dict[str, Any] = {
    "device": "cpu", "served_model_name": SERVED, "num_kv_blocks": 200, "max_num_seqs": 8,
    "max_num_batched_tokens": 64, "max_model_len": 512,
}  # fmt: skip
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
TEXTS = ["What is ATOM?", "An inference engine.", "é" * 60, "x"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reranker(tmp_path_factory.mktemp("reranker"))


def serving(folder: Path, **options: Any) -> Any:
    return serve_model(build_config(EngineOptions.of(model=str(folder), **{**OPTIONS, **options})))


@pytest.fixture
async def rig(embedder: Path) -> AsyncIterator[HttpRig]:
    async with serving(embedder) as rig:
        yield rig


def tokens_of(folder: Path, text: str) -> list[int]:
    return Tokenizer(folder).encode(text, add_special_tokens=True)


async def test_the_official_client_gets_transformers_vectors(rig: HttpRig, embedder: Path) -> None:
    async with rig.openai_client() as client:
        answer = await client.embeddings.create(model=SERVED, input=TEXTS)  # asks for base64
        assert [each.index for each in answer.data] == [0, 1, 2, 3]
        for text, each in zip(TEXTS, answer.data, strict=True):
            wanted = expected_embedding(embedder, tokens_of(embedder, text))
            np.testing.assert_allclose(each.embedding, wanted, **CLOSE)
        counts = [len(tokens_of(embedder, text)) for text in TEXTS]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(counts)


async def test_every_form_of_input_and_answer_says_the_same(rig: HttpRig, embedder: Path) -> None:
    ids = [tokens_of(embedder, text) for text in TEXTS]
    whole = (await rig.post("/v1/embeddings", input=TEXTS)).json()["data"]
    assert await _vectors(rig, input=ids) == [each["embedding"] for each in whole]
    for text, tokens, each in zip(TEXTS, ids, whole, strict=True):
        np.testing.assert_allclose(await _vectors(rig, input=text), [each["embedding"]], **CLOSE)
        np.testing.assert_allclose(await _vectors(rig, input=tokens), [each["embedding"]], **CLOSE)
    packed = await _vectors(rig, input=TEXTS, encoding_format="base64")
    for text, each in zip(packed, whole, strict=True):
        numbers = np.frombuffer(base64.b64decode(text), dtype="<f4")
        np.testing.assert_allclose(numbers, each["embedding"], **CLOSE)


async def _vectors(rig: HttpRig, **fields: Any) -> list[Any]:
    answer = await rig.post("/v1/embeddings", **fields)
    assert answer.status_code == 200, answer.text
    return [each["embedding"] for each in answer.json()["data"]]


async def test_ollamas_client_gets_the_vectors_of_v1_embeddings(rig: HttpRig) -> None:
    whole = await _vectors(rig, input=TEXTS)
    client = AsyncClient(rig.url)
    found = await client.embed(SERVED, TEXTS, options={"num_ctx": 8}, keep_alive="5m")
    np.testing.assert_allclose(found.embeddings, whole, **CLOSE)
    assert (found.model, found.prompt_eval_count) == (SERVED, await _tokens(rig, input=TEXTS))
    (one,) = (await client.embed(f"{SERVED}:latest", TEXTS[0], dimensions=8)).embeddings
    np.testing.assert_allclose([one], await _vectors(rig, input=TEXTS[0], dimensions=8), **CLOSE)
    older = await client.embeddings(SERVED, TEXTS[1])
    np.testing.assert_allclose(older.embedding, whole[1], **CLOSE)
    shown = await client.show(SERVED)
    assert shown.capabilities == ["embedding"]
    long = "x" * 600
    (cut,) = (await client.embed(SERVED, long)).embeddings
    assert [cut] == await _vectors(rig, input=long, truncate_prompt_tokens=-1)
    with pytest.raises(ResponseError, match="512"):
        await client.embed(SERVED, long, truncate=False)
    with pytest.raises(ResponseError, match="is not served here"):
        await client.embed("other", "x")
    with pytest.raises(ResponseError, match=r"pooling|generate"):
        await client.chat(SERVED, [{"role": "user", "content": "x"}])
    for body in ({}, {"model": SERVED}, {"model": SERVED, "input": []}, {"input": [[1, 2]]}):
        refused = await rig.post("/api/embed", **body)
        assert refused.status_code == 400
        assert isinstance(refused.json()["error"], str)


async def _tokens(rig: HttpRig, **fields: Any) -> int:
    usage = (await rig.post("/v1/embeddings", **fields)).json()["usage"]
    return int(usage["prompt_tokens"])


async def test_fewer_dimensions_are_the_first_ones_of_length_1(rig: HttpRig) -> None:
    (whole,), (first,) = (
        await _vectors(rig, input="a b c"),
        await _vectors(rig, input="a b c", dimensions=8),
    )
    kept = np.array(whole[:8])
    np.testing.assert_allclose(first, kept / np.linalg.norm(kept), **CLOSE)


async def test_an_input_may_fill_the_context_and_not_more(rig: HttpRig, embedder: Path) -> None:
    full = [5 + index % 90 for index in range(512)]
    (vector,) = await _vectors(rig, input=full)
    np.testing.assert_allclose(vector, expected_embedding(embedder, full), **CLOSE)
    refused = await rig.post("/v1/embeddings", input=[*full, 7])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input"
    cut = await _vectors(rig, input=[*full, 7], truncate_prompt_tokens=-1)
    np.testing.assert_allclose(cut, [vector], **CLOSE)
    left = {"truncate_prompt_tokens": -1, "truncation_side": "left"}
    np.testing.assert_allclose(await _vectors(rig, input=[7, *full], **left), [vector], **CLOSE)


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": [[]]}, "input"),
    ({"input": [10**9]}, "input"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": "a", "dimensions": 65}, "dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
    ({"input": "a", "dimension": 8}, "dimension"),
]


async def test_a_bad_request_is_refused_by_the_field(rig: HttpRig) -> None:
    for fields, param in BAD_REQUESTS:
        refused = await rig.post("/v1/embeddings", **fields)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == param


async def test_a_client_that_leaves_aborts_its_inputs(rig: HttpRig) -> None:
    long = [[5 + index % 90] * 500 for index in range(60)]
    asked = asyncio.create_task(rig.post("/v1/embeddings", input=long))
    await eventually(lambda: rig.engine.open_requests > 0, "they are queued")
    asked.cancel()
    await eventually(lambda: rig.engine.open_requests == 0, "they are given up")
    held = [1]
    while any(held):
        held = await rig.engine.call_utility("check_integrity")


async def test_documents_may_be_objects_of_which_some_fields_are_ranked(embedder: Path) -> None:
    async with serving(embedder) as rig:
        objects = [{"title": text, "body": "b", "year": 1} for text in TEXTS]

        async def ranked(documents: list[Any], **fields: Any) -> Any:
            body = {"query": TEXTS[0], "documents": documents, **fields}
            return (await rig.post("/v2/rerank", **body)).json()

        plain = await ranked(TEXTS)
        by_title = await ranked(objects, rank_fields=["title"], max_chunks_per_doc=10)
        assert by_title["results"] == plain["results"]
        both = await ranked(objects, rank_fields=["title", "body"])
        lines = await ranked([f"title: {text}\nbody: b" for text in TEXTS])
        assert both["results"] == lines["results"]
        for fields, words in (({}, "documents[0].text"), ({"rank_fields": ["year"]}, ".year")):
            assert words in (await ranked(objects, **fields))["error"]["message"]


async def test_an_embedding_model_compares_texts_by_their_cosine(
    rig: HttpRig, embedder: Path
) -> None:
    vectors = [expected_embedding(embedder, tokens_of(embedder, text)) for text in TEXTS]
    answer = (await rig.post("/v1/score", text_1=TEXTS[0], text_2=TEXTS)).json()
    scores = [each["score"] for each in answer["data"]]
    np.testing.assert_allclose(scores, [vectors[0] @ vector for vector in vectors], **CLOSE)
    pairs = (await rig.post("/score", text_1=TEXTS[:2], text_2=TEXTS[2:])).json()
    wanted = [vectors[0] @ vectors[2], vectors[1] @ vectors[3]]
    np.testing.assert_allclose([each["score"] for each in pairs["data"]], wanted, **CLOSE)
    ranked = (await rig.post("/v1/rerank", query=TEXTS[0], documents=TEXTS)).json()["results"]
    assert ranked[0]["index"] == 0
    refused = await rig.post("/v1/score", text_1=TEXTS[:2], text_2=TEXTS[:3])
    assert refused.status_code == 400
    told = await rig.post("/v1/score", text_1="a", text_2="b", instruction="be strict")
    assert told.json()["error"]["param"] == "instruction"


async def test_long_texts_are_read_from_their_beginning_and_no_cosine_is_above_one(
    rig: HttpRig,
) -> None:
    """In bytes, which this tokenizer's tokens are."""
    long = "An inference engine. " * 60
    plain = await rig.post("/v1/rerank", query="What?", documents=[long])
    assert plain.json()["error"]["param"] == "documents"
    fields = {"max_tokens_per_doc": 9, "max_tokens_per_query": 7}
    cut = await rig.post("/v1/rerank", query="is this " * 90, documents=[long, "x"], **fields)
    query = await rig.engine.detokenize((await rig.engine.tokenize("is this " * 90))[:7])
    text = await rig.engine.detokenize((await rig.engine.tokenize(long))[:9])
    short = await rig.post("/v1/rerank", query=query, documents=[text, "x"])
    found, wanted = (
        {each["index"]: each["relevance_score"] for each in answer.json()["results"]}
        for answer in (cut, short)
    )
    assert found == wanted
    assert {each["document"]["text"] for each in cut.json()["results"]} == {long, "x"}
    same = await rig.post("/v1/score", text_1=TEXTS, text_2=TEXTS)
    assert all(each["score"] <= 1 for each in same.json()["data"])


async def test_a_reranker_judges_as_its_model_card_says(reranker: Path) -> None:
    instruction = "Find the engine"
    async with serving(reranker, convert="classify") as rig:
        no, yes = score_tokens(rig.engine.config.model)

        def expected(query: str, text: str, told: str | None) -> float:
            prompt = "".join(reranker_parts(query, text, told))
            ids = Tokenizer(reranker).encode(prompt, add_special_tokens=False)
            return expected_score(reranker, ids, no, yes)

        wanted = [expected("What?", text, None) for text in TEXTS]
        answer = (await rig.post("/v1/score", text_1="What?", text_2=TEXTS)).json()
        scores = [each["score"] for each in answer["data"]]
        np.testing.assert_allclose(scores, wanted, **CLOSE)
        documents = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
        for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
            answer = await rig.post(path, query="What?", documents=documents, top_n=3)
            ranked = answer.json()["results"]
            order = sorted(range(4), key=lambda index: -wanted[index])[:3]
            assert [each["index"] for each in ranked] == order
            assert [each["document"]["text"] for each in ranked] == [TEXTS[i] for i in order]
        bare = await rig.post(
            "/v1/rerank", query="q", documents=["a"], instruction=instruction,
            return_documents=False,
        )  # fmt: skip
        (only,) = bare.json()["results"]
        assert "document" not in only
        wanted_one = expected("q", "a", instruction)
        np.testing.assert_allclose(only["relevance_score"], wanted_one, **CLOSE)
        around = sum(
            len(Tokenizer(reranker).encode(part, add_special_tokens=False))
            for index, part in enumerate(reranker_parts("q", "", None))
            if index != 1
        )
        cut = await rig.post(
            "/v1/score", text_1="q", text_2="long " * 400, truncate_prompt_tokens=around + 40
        )
        assert cut.json()["usage"]["prompt_tokens"] == around + 40

        async def judged(text: str, side: str) -> float:
            fields = {"truncate_prompt_tokens": around + 40, "truncation_side": side}
            answer = await rig.post("/v1/score", text_1="q", text_2=text, **fields)
            return float(answer.json()["data"][0]["score"])

        long = "long " * 400
        assert await judged(long + "x", "right") == await judged(long + "y", "right")
        assert await judged(long + "x", "left") != await judged(long + "y", "left")
        refused = await rig.post("/v1/embeddings", input="a")
        assert "--convert embed" in refused.json()["error"]["message"]


@pytest.mark.parametrize("ranks", ["data_parallel_size", "tensor_parallel_size"])
async def test_two_ranks_give_the_same_vectors(embedder: Path, ranks: str) -> None:
    async with serving(embedder, **{ranks: 2}) as rig:
        inputs = [f"text number {index} {'word ' * (index % 7)}" for index in range(24)]
        found = await _vectors(rig, input=inputs)
        for text, vector in zip(inputs[::5], found[::5], strict=True):
            wanted = expected_embedding(embedder, tokens_of(embedder, text))
            np.testing.assert_allclose(vector, wanted, **CLOSE)
        if ranks == "data_parallel_size":
            stats = rig.engine.stats_by_rank
            assert all(told.stats.prompt_tokens_total > 0 for told in stats.values())


async def test_each_model_refuses_by_name_what_it_was_not_started_for(
    rig: HttpRig, reranker: Path
) -> None:
    refused = await rig.chat()
    assert refused.status_code == 400
    assert "--runner generate" in (await rig.post("/v1/completions", prompt="a")).text
    for path, body in EXAMPLES.items():
        assert (await rig.post(path, **{**body, "model": SERVED})).status_code == 200, path
    async with serving(reranker) as generating:
        for path, body in EXAMPLES.items():
            refused = await generating.post(path, **{**body, "model": SERVED})
            assert refused.status_code == 400
            assert "--runner pooling" in refused.json()["error"]["message"]


def _built(folder: Path, **options: Any) -> Any:
    return build_config(EngineOptions.of(model=str(folder), device="cpu", **options)).model.pooling


def test_options_and_files_say_what_is_pooled(tmp_path: Path, embedder: Path) -> None:
    plain = make_tiny_checkpoint(tmp_path / "plain")
    assert _built(plain) is None
    assert _built(plain, runner="pooling").kind == "embed"
    assert _built(plain, convert="classify").kind == "classify"
    assert _built(embedder).kind == "embed"
    assert _built(embedder, runner="generate") is None
    with pytest.raises(ConfigError, match="--runner pooling"):
        _built(plain, runner="generate", convert="embed")
    with pytest.raises(ConfigError, match="leave the option out"):
        _built(embedder, convert="classify")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: add_modules(folder, pooling_mode="mean_tokens"), "mean_tokens"),
        (
            lambda folder: _edit(folder / "modules.json", "models.Normalize", "models.WordWeights"),
            "WordWeights",
        ),
        (lambda folder: _edit(folder / "config.json", "{", '{"is_causal": false,'), "directions"),
        (lambda folder: (folder / "modules.json").write_text("{}]"), "modules"),
    ],
)
def test_a_pooling_that_is_not_computed_is_refused_by_name(
    tmp_path: Path, change: Any, message: str
) -> None:
    folder = make_embedder(tmp_path / "model")
    change(folder)
    with pytest.raises(ModelError, match=message):
        _built(folder)


def test_a_reranker_of_sentence_transformers_names_its_tokens(tmp_path: Path) -> None:
    folder = make_embedder(tmp_path / "model")
    rows = json.loads((folder / "modules.json").read_text())[:1]
    kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    rows.append({"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind})
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_LogitScore").mkdir()
    settings = folder / "1_LogitScore" / "config.json"
    settings.write_text(json.dumps({"true_token_id": 9, "false_token_id": 4}))
    found = _built(folder)
    assert (found.kind, found.token_ids) == ("classify", (4, 9))
    settings.write_text(json.dumps({"true_token_id": 9, "false_token_id": None}))
    with pytest.raises(ModelError, match="by one token"):
        _built(folder)


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
