"""Keys of sentence-transformers' files: each changes the pooling as there, is harmless, or is
refused by name; odd values are drawn for each."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as PublishedTokenizer
from tokenizers import normalizers

from atom.checkpoint import open_checkpoint
from atom.config import EngineOptions, build_config
from atom.errors import ModelError
from atom.pooling_config import RERANKER_INSTRUCTION, PoolingConfig, pooling_config
from atom.pooling_config.sentence_files import KEYS, Part
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
from tests.support.models.pooling_checkpoint import add_modules, make_reranker
from tests.support.server.http_app import serve_model

OPTIONS: dict[str, Any] = {
    "device": "cpu", "served_model_name": "tiny", "num_kv_blocks": 64, "max_num_seqs": 8,
    "max_num_batched_tokens": 96,
}  # fmt: skip
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
MODEL_FILE, LENGTH_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"
IDENTITY = "torch.nn.modules.linear.Identity"


def say(file: Path, **fields: Any) -> Path:
    """Add fields to a file, or begin it."""
    file.parent.mkdir(exist_ok=True)
    said = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**said, **fields}))
    return file


def row(index: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": index, "name": str(index), "path": path, "type": kind}


def make_embedder(folder: Path) -> Path:
    make_sentence_encoder(folder, "bert")
    add_dense(folder, 48, 20)
    say(folder / "2_Normalize" / "config.json")
    return folder


def make_token_reranker(folder: Path) -> Path:
    """Qwen3-Reranker's form with sentence-transformers' files."""
    make_reranker(folder)
    tokenizer = Tokenizer(folder)
    no, yes = (tokenizer.token_id(text) for text in "ny")
    types = "sentence_transformers."
    rows = [row(0, "", f"{types}models.Transformer"), row(1, "1", f"{types}a.LogitScore")]
    (folder / "modules.json").write_text(json.dumps(rows))
    say(folder / "1" / "config.json", true_token_id=yes, false_token_id=no)
    return folder


def pooled(folder: Path) -> PoolingConfig:
    found = pooling_config(open_checkpoint(folder), "auto", "auto")
    assert found is not None
    return found


@dataclass(frozen=True)
class Owner:
    """A file of one of two models, with sentence-transformers' own defaults of its keys, by which
    nothing changes, and keys of any value."""

    file: str
    defaults: dict[str, tuple[Any, ...]]
    harmless: tuple[str, ...] = ()
    reranks: bool = False


EMPTY: tuple[Any, ...] = (None, {}, [], "", 0, False)  # as no arguments
OWNERS = {
    Part.MODEL: Owner(
        MODEL_FILE,
        {
            "prompts": (None, {}),
            "default_prompt_name": (None,),
            "similarity_fn_name": (None, "cosine"),
            "truncate_dim": (None,),
            "model_type": (None, "SentenceTransformer"),
            "activation_fn": (None,),
        },
        ("__version__", "requirements", "keep_in_fp32_modules"),
    ),
    Part.TRANSFORMER: Owner(
        LENGTH_FILE,
        {
            "max_seq_length": (None,),
            "do_lower_case": (None, False),
            "transformer_task": (None, "feature-extraction"),
            "modality_config": (None, {}),
            "module_output_name": (None, "token_embeddings"),
            "processing_kwargs": EMPTY,
            "query_length": (None,),
            "document_length": (None,),
            "query_expansion": (None,),
            "tokenizer_name_or_path": (None,),
            **{
                f"{of}_{end}": EMPTY
                for of, end in (
                    ("model", "args"), ("model", "kwargs"), ("tokenizer", "args"),
                    ("processor", "kwargs"), ("config", "args"), ("config", "kwargs"),
                )
            },
        },
        ("unpad_inputs",),
    ),
    Part.POOLING: Owner(
        "1_Pooling/config.json",
        {
            "pooling_mode": ("mean", ["mean"]),
            "pooling_mode_mean_tokens": (True,),
            "include_prompt": (True,),
            **{
                f"pooling_mode_{name}": (False,)
                for name in (
                    "cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
                    "lasttoken",
                )
            },
        },
        ("word_embedding_dimension", "embedding_dimension"),
    ),
    Part.DENSE: Owner(
        "2_Dense/config.json",
        {
            "in_features": (48,),
            "out_features": (20,),
            "bias": (True,),
            "activation_function": ("torch.nn.modules.activation.Tanh",),
            "module_input_name": (None, "sentence_embedding"),
            "module_output_name": (None, "sentence_embedding"),
            "use_residual": (None, False),
        },
    ),
    Part.NORMALIZE: Owner(
        "2_Normalize/config.json",
        {
            "module_input_name": (None, "sentence_embedding"),
            "module_output_name": (None, "sentence_embedding"),
        },
    ),
    Part.LOGIT_SCORE: Owner(
        "1/config.json",
        {
            "true_token_id": (),
            "false_token_id": (),
            "module_input_name": (None, "causal_logits"),
        },
        reranks=True,
    ),
}  # fmt: skip
ODD = (
    None, True, False, 0, 1, -1, 2, 2.5, 1 << 40, "", "x", "mean", "cosine", "dot",
    "token_embeddings", "torch.nn.Tanh", IDENTITY, [], ["mean"], ["mean", "cls"],
    [1], {}, {"x": 1}, {"query": "q"}, {"dtype": "float16"},
    {"text": {"method": "forward", "method_output_name": "pooler_output"}},
)  # fmt: skip


def test_the_table_has_each_key_that_sentence_transformers_knows() -> None:
    for part, owner in OWNERS.items():
        assert KEYS[part].keys() == {*owner.defaults, *owner.harmless}
    assert OWNERS.keys() == set(Part)


@pytest.mark.parametrize("part", list(OWNERS), ids=lambda part: part.value)
def test_no_key_is_ignored(tmp_path: Path, part: Part) -> None:
    owner = OWNERS[part]
    folder = (make_token_reranker if owner.reranks else make_embedder)(tmp_path)
    file = say(folder / owner.file)
    own, plain = file.read_text(), pooled(folder)
    for key in (*owner.defaults, *owner.harmless, "new_key"):
        for value in ODD:
            file.write_text(own)
            say(file, **{key: value})
            told = f"{key} {value!r}"
            neutral = _is_neutral(owner, part, key, value)
            found = _outcome(folder)
            if isinstance(found, str):
                assert not neutral, f"{told} is refused: {found}"
                assert owner.file in found
                assert key in found or key.startswith("pooling_mode") or part is Part.DENSE
                assert len(found) < 400 + len(str(file))
            else:
                assert found == plain or not neutral, f"{told} changes the pooling"
                served = found != plain or neutral or _is_alone(key, value)
                assert served, f"{told} is ignored"


def _outcome(folder: Path) -> PoolingConfig | str:
    """Return the pooling, or the words of its refusal."""
    try:
        return pooled(folder)
    except ModelError as error:
        return str(error)


def _is_neutral(owner: Owner, part: Part, key: str, value: Any) -> bool:
    if key == "new_key":
        return any(value == each for each in EMPTY) or part is Part.MODEL
    return key in owner.harmless or any(
        value == each and type(value) is type(each) for each in owner.defaults[key]
    )


def _is_alone(key: str, value: Any) -> bool:
    """Return whether a value loads the model otherwise, with the same vectors, or is a score's."""
    if key == "activation_function":
        return value == "torch.nn.Tanh"
    return (key == "activation_fn" and str(value).startswith("torch.")) or (
        key in ("model_args", "model_kwargs") and value == {"dtype": "float16"}
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "custom_st.Transformer"}, "custom_st.Transformer is not computed"),
        ({"type": "sentence_transformers.models.WordWeights"}, "WordWeights is not computed"),
        ({"path": "0_Transformer"}, "whose path is empty"),
        ({"path": "a/1_Pooling"}, "beside this file"),
        ({"path": ".."}, "beside this file"),
    ],
)
def test_a_module_that_is_elsewhere_or_of_other_code_is_refused(
    tmp_path: Path, change: dict[str, str], words: str
) -> None:
    folder = make_sentence_encoder(tmp_path, "bert")
    file = folder / "modules.json"
    first, *rest = json.loads(file.read_text())
    file.write_text(json.dumps([{**first, **change}, *rest]))
    with pytest.raises(ModelError, match=words):
        pooled(folder)


def test_a_head_of_labels_with_a_pooling_behind_is_refused(tmp_path: Path) -> None:
    add_modules(make_encoder(tmp_path, "bert", head=True))
    with pytest.raises(ModelError, match="Pooling, Normalize behind a head"):
        pooled(tmp_path)


def test_the_first_file_with_settings_counts(tmp_path: Path) -> None:
    folder = make_sentence_encoder(tmp_path, "bert")
    say(folder / "sentence_xlnet_config.json", max_seq_length=9)
    say(folder / "sentence_roberta_config.json", max_seq_length=30, do_lower_case=True)
    say(folder / LENGTH_FILE)
    assert (pooled(folder).max_tokens, pooled(folder).lowercases) == (30, True)
    say(folder / LENGTH_FILE, max_seq_length=None, do_lower_case=False)
    assert (pooled(folder).max_tokens, pooled(folder).lowercases) == (None, False)


def lowercased(folder: Path) -> PublishedTokenizer:
    """The tokenizer as sentence-transformers changes it for do_lower_case."""
    tokenizer = PublishedTokenizer.from_file(str(folder / "tokenizer.json"))
    parts = [normalizers.Lowercase()]
    if tokenizer.normalizer is not None:
        parts.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(parts)
    return tokenizer


WORDS = ("The", "ENGINE", "is", "TEA", "É", "İ", "ΣΑΣ", "[SEP]", "</s>", "x1", "Straße", "")


@pytest.mark.parametrize("family", FAMILIES)
async def test_texts_are_lowercased_before_they_are_tokenized(tmp_path: Path, family: str) -> None:
    draw = random.Random(family)
    folder = make_sentence_encoder(tmp_path, family)
    say(folder / LENGTH_FILE, do_lower_case=True)
    say(folder / MODEL_FILE, prompts={"query": "IS: "})
    published = lowercased(folder)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(8)]
    texts[0] = "The ENGINE"
    async with serve_model(build_config(EngineOptions.of(model=str(folder), **OPTIONS))) as rig:
        for fields, prompt in ({}, ""), ({"prompt_name": "query"}, "IS: "):
            answer = (await rig.post("/v1/embeddings", input=texts, **fields)).json()
            ids = [published.encode(prompt + text).ids for text in texts]
            for each, wanted in zip(answer["data"], ids, strict=True):
                np.testing.assert_allclose(
                    each["embedding"], expected_vector(folder, wanted), **CLOSE
                )
            assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
        counted = (await rig.post("/tokenize", prompt=texts[0])).json()
        assert counted["tokens"] == published.encode(texts[0]).ids
        same = (await rig.post("/score", text_1=texts[0], text_2=texts[0].lower())).json()
        assert same["data"][0]["score"] == pytest.approx(1, abs=1e-5)
        cut = {"max_tokens_per_doc": 2, "query": "tea"}
        upper, lower = [
            (await rig.post("/rerank", documents=[text], **cut)).json()["results"][0]
            for text in ("TEA IS TEA", "tea is tea")
        ]
        assert upper["relevance_score"] == lower["relevance_score"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_pairs_of_a_cross_encoder_are_lowercased(tmp_path: Path, family: str) -> None:
    folder = make_encoder(tmp_path, family, head=True)
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    (folder / "modules.json").write_text(json.dumps([row(0, "", kind)]))
    say(folder / LENGTH_FILE, do_lower_case=True, transformer_task="sequence-classification")
    say(folder / MODEL_FILE, model_type="CrossEncoder", activation_fn=IDENTITY)
    first, second = "The ENGINE", "TEA Is"
    wanted = expected_label(folder, first.lower(), second.lower())
    async with serve_model(build_config(EngineOptions.of(model=str(folder), **OPTIONS))) as rig:
        answer = (await rig.post("/score", text_1=first, text_2=second)).json()
        np.testing.assert_allclose(answer["data"][0]["score"], wanted, **CLOSE)
    say(folder / MODEL_FILE, prompts={"a": "x: "}, default_prompt_name="a")
    with pytest.raises(ModelError, match="default prompt a"):
        pooled(folder)


async def test_a_rerankers_score_is_by_the_named_activation(tmp_path: Path) -> None:
    folder = make_token_reranker(tmp_path)
    say(folder / MODEL_FILE, activation_fn=IDENTITY, default_prompt_name="query")
    say(folder / MODEL_FILE, prompts={"query": RERANKER_INSTRUCTION})
    scores = []
    for fields in ({}, {"activation_fn": "torch.nn.modules.activation.Sigmoid"}):
        say(folder / MODEL_FILE, **fields)
        async with serve_model(build_config(EngineOptions.of(model=str(folder), **OPTIONS))) as rig:
            answer = await rig.post("/score", text_1="the engine", text_2="tea")
            assert answer.status_code == 200, answer.text
            scores.append(answer.json()["data"][0]["score"])
    assert scores[1] == pytest.approx(1 / (1 + np.exp(-scores[0])), rel=1e-5)
    say(folder / MODEL_FILE, prompts={"query": "another"})
    with pytest.raises(ModelError, match="default prompt query"):
        pooled(folder)


async def test_vectors_are_compared_as_the_files_say(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "bert")
    add_modules(folder, pooling_mode="mean_tokens", normalize=False)
    tokenizer, texts = Tokenizer(folder), ("the engine", "tea x1")
    one, other = (
        hidden_states(folder, tokenizer.encode(text, add_special_tokens=True)).mean(dim=0).numpy()
        for text in texts
    )
    wanted = {
        "cosine": one @ other / np.linalg.norm(one) / np.linalg.norm(other),
        "dot": one @ other,
        "euclidean": -np.linalg.norm(one - other),
        "manhattan": -np.abs(one - other).sum(),
    }
    for name, score in wanted.items():
        say(folder / MODEL_FILE, similarity_fn_name=name)
        async with serve_model(build_config(EngineOptions.of(model=str(folder), **OPTIONS))) as rig:
            answer = (await rig.post("/score", text_1=texts[0], text_2=texts[1])).json()
            np.testing.assert_allclose(answer["data"][0]["score"], score, **CLOSE)
