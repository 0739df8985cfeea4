"""Text encoders of a whole server against transformers: embeddings, scores, ranks, refusals.

Drawn configurations of each family: odd numbers of heads, several lengths in one step, prompts of
the full length, and steps that hold a few of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as PublishedTokenizer

from atom.config import Config, EngineOptions, build_config
from atom.errors import AtomError, ConfigError, ModelError
from atom.models.decoder.encoder.pooled_rows import pooled_rows
from atom.pooling_config import TokenPooling
from atom.sampling_params import TruncationSide
from atom.tokenizer import Tokenizer
from tests.support.models.encoder_checkpoints import (
    FAMILIES,
    add_dense,
    expected_label,
    expected_vector,
    hidden_states,
    make_encoder,
    make_sentence_encoder,
)
from tests.support.server.http_app import HttpRig, serve_model

SERVED = "tiny"
OPTIONS: dict[str, Any] = {
    "device": "cpu", "served_model_name": SERVED, "num_kv_blocks": 24, "max_num_seqs": 8,
    "max_num_batched_tokens": 96,
}  # fmt: skip
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
QUERY = "what is the engine"
DOCUMENTS = ["the engine is in tea, what?", "x", "", "what is the engineing and longer 12345"]


def built(folder: Path, **options: Any) -> Config:
    return build_config(EngineOptions.of(model=str(folder), **{**OPTIONS, **options}))


def serving(folder: Path, **options: Any) -> AbstractAsyncContextManager[HttpRig]:
    return serve_model(built(folder, **options))


async def vectors(rig: HttpRig, **fields: Any) -> list[Any]:
    answer = await rig.post("/v1/embeddings", **fields)
    assert answer.status_code == 200, answer.text
    return [each["embedding"] for each in answer.json()["data"]]


def drawn(draw: random.Random, family: str) -> dict[str, Any]:
    """Settings of a configuration: heads of even sizes in any number, layers and activations."""
    heads = draw.choice((1, 3, 5, 6))
    settings = {
        "num_attention_heads": heads,
        "hidden_size": heads * draw.choice((8, 10, 16)),
        "num_hidden_layers": draw.randint(1, 5),
        "intermediate_size": draw.choice((24, 52, 80)),
        "max_position_embeddings": draw.choice((48, 66)),
    }
    activation = draw.choice(("gelu", "gelu_pytorch_tanh", "relu"))
    if family == "modernbert":
        every = draw.randint(1, 4)
        return {
            **settings,
            "hidden_activation": activation,
            "local_attention": draw.choice((2, 7, 12)),
            "global_attn_every_n_layers": every,
            "norm_bias": draw.random() < 0.5,
            "attention_bias": draw.random() < 0.5,
            "mlp_bias": draw.random() < 0.5,
            "classifier_bias": draw.random() < 0.5,
            "classifier_pooling": draw.choice(("cls", "mean")),
        }
    return {**settings, "hidden_act": activation, "type_vocab_size": draw.choice((1, 2))}


@pytest.mark.parametrize("family", FAMILIES)
async def test_drawn_encoders_give_transformers_vectors(tmp_path: Path, family: str) -> None:
    draw = random.Random(f"vectors of {family}")
    mode, tokens = draw.choice([("cls_token", "cls"), ("mean_tokens", "mean")])
    folder = make_sentence_encoder(tmp_path, family, pooling_mode=mode, **drawn(draw, family))
    config = built(folder)
    longest, size = config.model.max_model_len, config.model.vocab_size
    lengths = [longest, 1, 2, *(draw.randint(1, longest) for _ in range(9)), longest - 1]
    prompts = [[draw.randrange(4, size) for _ in range(length)] for length in lengths]
    async with serve_model(config) as rig:
        together = await vectors(rig, input=prompts)
        for prompt, vector in zip(prompts, together, strict=True):
            np.testing.assert_allclose(vector, expected_vector(folder, prompt, tokens), **CLOSE)


def test_each_rule_pools_the_tokens_of_each_wanted_prompt() -> None:
    draw = random.Random("rules of pooling")
    for _ in range(20):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        states = torch.randn(sum(lengths), 5)
        parts = states.split(lengths)
        starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        rows = sorted(draw.sample(range(len(lengths)), draw.randint(1, len(lengths))))
        wanted = starts[1:][rows].long() - 1
        rules: dict[TokenPooling, Callable[[torch.Tensor], torch.Tensor]] = {
            "cls": lambda part: part[0],
            "lasttoken": lambda part: part[-1],
            "mean": lambda part: part.mean(dim=0),
            "max": lambda part: part.amax(dim=0),
            "mean_sqrt_len_tokens": lambda part: part.sum(dim=0) / len(part) ** 0.5,
        }
        for name, rule in rules.items():
            expected = torch.stack([rule(parts[row]) for row in rows])
            torch.testing.assert_close(pooled_rows(states, starts, wanted, name), expected)


@pytest.mark.parametrize("family", FAMILIES)
async def test_drawn_cross_encoders_give_transformers_scores(tmp_path: Path, family: str) -> None:
    draw = random.Random(f"scores of {family}")
    settings = {**drawn(draw, family), "max_position_embeddings": 66}
    folder = make_encoder(tmp_path, family, head=True, **settings)
    labels = [expected_label(folder, QUERY, document) for document in DOCUMENTS]
    wanted = [1 / (1 + np.exp(-label)) for label in labels]
    async with serving(folder) as rig:
        answer = await rig.post("/score", text_1=QUERY, text_2=DOCUMENTS)
        assert answer.status_code == 200, answer.text
        scores = [each["score"] for each in answer.json()["data"]]
        np.testing.assert_allclose(scores, wanted, **CLOSE)
        ranked = (await rig.post("/rerank", query=QUERY, documents=DOCUMENTS)).json()["results"]
        order = sorted(range(len(wanted)), key=lambda index: -wanted[index])
        assert [each["index"] for each in ranked] == order
        refused = await rig.post("/v1/embeddings", input=QUERY)
        assert refused.status_code == 400
        refused = await rig.post("/score", text_1="a", text_2="b", instruction="judge")
        assert "write it into the query" in refused.json()["error"]["message"]
        long = {"text_1": QUERY, "text_2": "the engine is tea " * 20}
        refused = await rig.post("/score", **long)
        assert "truncate_prompt_tokens" in refused.json()["error"]["message"]
        answer = await rig.post("/score", **long, truncate_prompt_tokens=30)
        assert answer.json()["usage"]["prompt_tokens"] == 30


async def test_two_ranks_give_the_same_vectors_and_scores(tmp_path: Path) -> None:
    settings = {"num_attention_heads": 4, "intermediate_size": 70}
    embedder = make_sentence_encoder(tmp_path / "embedder", "modernbert", **settings)
    async with serving(embedder, tensor_parallel_size=2) as rig:
        for text, vector in zip(DOCUMENTS, await vectors(rig, input=DOCUMENTS), strict=True):
            ids = Tokenizer(embedder).encode(text, add_special_tokens=True)
            np.testing.assert_allclose(vector, expected_vector(embedder, ids), **CLOSE)
    scorer = make_encoder(tmp_path / "scorer", "bert", head=True, **settings)
    async with serving(scorer, tensor_parallel_size=2) as rig:
        data = (await rig.post("/score", text_1=QUERY, text_2=DOCUMENTS)).json()["data"]
        for document, each in zip(DOCUMENTS, data, strict=True):
            label = expected_label(scorer, QUERY, document)
            assert each["score"] == pytest.approx(1 / (1 + np.exp(-label)), rel=1e-4)


async def test_long_texts_are_refused_or_cut_with_their_closing_mark(tmp_path: Path) -> None:
    folder, long = make_sentence_encoder(tmp_path, "xlm-roberta"), "the engine is tea " * 20
    published = PublishedTokenizer.from_file(str(folder / "tokenizer.json"))
    async with serving(folder) as rig:
        refused = await rig.post("/v1/embeddings", input=long)
        assert refused.status_code == 400
        assert "truncate_prompt_tokens" in refused.json()["error"]["message"]
        for most in (-1, 9, 2):
            published.enable_truncation(62 if most == -1 else most)
            (vector,) = await vectors(rig, input=long, truncate_prompt_tokens=most)
            wanted = expected_vector(folder, published.encode(long).ids)
            np.testing.assert_allclose(vector, wanted, **CLOSE)
        refused = await rig.post("/v1/completions", prompt="a")
        assert refused.status_code == 400
        assert "it is an encoder" in refused.json()["error"]["message"]


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_cut_as_tokenizers_cut_the_longest_first(tmp_path: Path, family: str) -> None:
    folder, draw = make_encoder(tmp_path, family), random.Random(family)
    own = Tokenizer(folder)
    published = PublishedTokenizer.from_file(str(folder / "tokenizer.json"))
    around = published.num_special_tokens_to_add(is_pair=True)
    for _ in range(200):
        first, second = ("tea " * draw.randint(0, 12) for _ in range(2))
        most = draw.randint(around + 1, 60)
        published.enable_truncation(most, strategy="longest_first")
        wanted = published.encode(first, second)
        assert own.encode_pair(first, second, most) == (wanted.ids, wanted.type_ids)


def _say_side(folder: Path, place: str, side: str) -> None:
    """Give a tokenizer's files a side of truncation; place: of the two that transformers reads."""
    file = folder / f"{place}.json"
    told = {"direction": side.title(), "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    said = {"truncation_side": side} if place == "tokenizer_config" else {"truncation": told}
    file.write_text(json.dumps({**json.loads(file.read_text()), **said}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", ["tokenizer_config", "tokenizer"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_at_the_side_that_the_tokenizer_says(
    tmp_path: Path, family: str, place: str, side: str
) -> None:
    folder, draw = make_encoder(tmp_path, family), random.Random(f"{family} {place} {side}")
    _say_side(folder, place, side)
    own = Tokenizer(folder)
    published = PublishedTokenizer.from_file(str(folder / "tokenizer.json"))
    for _ in range(60):
        first, second = (
            " ".join(draw.choices(("tea", "engine", "x1", "is"), k=draw.randint(0, 9)))
            for _ in range(2)
        )
        most, whole = draw.randint(5, 40), own.encode(first, add_special_tokens=True)
        published.enable_truncation(most, direction=side)
        assert own.cut(whole, most) == published.encode(first).ids
        assert own.encode_pair(first, second, most)[0] == published.encode(first, second).ids
        other: TruncationSide = "left" if side == "right" else "right"
        published.enable_truncation(most, direction=other)
        assert own.cut(whole, most, other) == published.encode(first).ids


def test_a_side_that_no_text_has_is_refused(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "bert")
    _say_side(folder, "tokenizer_config", "middle")
    with pytest.raises(ModelError, match="truncation_side is 'middle'"):
        Tokenizer(folder)


@pytest.mark.parametrize("head", [False, True])
async def test_an_encoder_keeps_the_end_if_its_tokenizer_cuts_left(
    tmp_path: Path, head: bool
) -> None:
    folder = make_encoder(tmp_path, "bert", head=head)
    _say_side(folder, "tokenizer_config", "left")
    long, closing = "tea is what " * 20, "the engine"
    ends = {"truncate_prompt_tokens": 30, "truncation_side": "right"}
    async with serving(folder) as rig:

        async def found(text: str, **fields: Any) -> Any:
            if not head:
                return await vectors(rig, input=text, **fields)
            answer = await rig.post("/score", text_1="x", text_2=text, **fields)
            return answer.json()["data"][0]["score"]

        cut = {"truncate_prompt_tokens": 30}
        assert await found(long + closing, **cut) != await found(long + "x", **cut)
        assert await found(closing + long, **cut) == await found("x " + long, **cut)
        assert await found(long + closing, **ends) == await found(long + "x", **ends)
        huge = "tea is what " * 4000  # far more than the context
        assert await found(huge, **ends) == await found(long, **ends)


async def test_matrices_behind_the_pooling_are_computed(tmp_path: Path) -> None:
    folder = make_sentence_encoder(tmp_path, "bert", pooling_mode="cls_token")
    add_dense(folder, 48, 20)
    tensors = load_file(folder / "2_Dense" / "model.safetensors")
    ids = Tokenizer(folder).encode(QUERY, add_special_tokens=True)
    dense = tensors["linear.weight"] @ hidden_states(folder, ids)[0] + tensors["linear.bias"]
    wanted = torch.nn.functional.normalize(dense.tanh(), dim=0)
    async with serving(folder) as rig:
        np.testing.assert_allclose((await vectors(rig, input=QUERY))[0], wanted.numpy(), **CLOSE)
        (short,) = await vectors(rig, input=QUERY, dimensions=20)
        assert len(short) == 20
        refused = await rig.post("/v1/embeddings", input=QUERY, dimensions=21)
        assert "have 20" in refused.json()["error"]["message"]


def test_files_say_how_an_encoder_is_pooled(tmp_path: Path) -> None:
    plain = make_encoder(tmp_path / "plain", "bert")
    found = built(plain)
    assert found.model.pooling is not None
    assert (found.model.pooling.kind, found.model.pooling.tokens) == ("embed", "mean")
    assert not found.cache.enable_prefix_caching
    assert not found.scheduler.divides_prompts
    (plain / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    assert built(plain).model.max_model_len == 32
    assert built(plain, max_model_len=64).model.max_model_len == 64
    scorer = make_encoder(tmp_path / "scorer", "bert", head=True)
    _say(scorer, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    pooling = built(scorer).model.pooling
    assert pooling is not None
    assert pooling.score == "logit"


def _say(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"runner": "generate"}, ConfigError, "generates nothing"),
        ({"convert": "classify"}, ConfigError, "is a model to embed"),
        ({"max_num_batched_tokens": 32}, ConfigError, "computes the whole of a text"),
        ({"long_prefill_token_threshold": 8}, ConfigError, "divided over steps"),
        ({"reproducible": True}, ConfigError, "both directions"),
        ({"kv_offloading_size": 1.0}, ConfigError, "no prefix of a text is cached"),
        ({"max_model_len": 65}, ConfigError, "at most 64"),
    ],
)
def test_options_that_no_encoder_can_have_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[AtomError], words: str
) -> None:
    with pytest.raises(error, match=words):
        built(make_sentence_encoder(tmp_path, "bert"), **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: _say(folder, hidden_act="swish2"), "hidden_act"),
        (lambda folder: _say(folder, position_embedding_type="relative_key"), "absolute"),
        (lambda folder: _say(folder, is_decoder=True), "generates"),
        (lambda folder: _say(folder, id2label={"0": "a", "1": "b"}), "has 2 labels"),
        (lambda folder: _say(folder, sentence_transformers={"activation_fn": "a.Tanh"}), "Tanh"),
    ],
)
def test_an_encoder_that_is_not_computed_is_refused_by_name(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    folder = make_encoder(tmp_path, "bert", head=True)
    change(folder)
    with pytest.raises(ModelError, match=words):
        built(folder)
