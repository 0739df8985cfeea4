"""A trained model, served from its GGUF file, says what transformers says of the same file.

What random weights cannot show: texts with a meaning, so that a stop string is met, JSON holds the
right words, and a draft out of the prompt comes true. In float32, as transformers computes here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.checkpoint import open_checkpoint
from atom.sizing import ModelFacts
from tests.engine.real_model.conftest import QUESTIONS, Oracle
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tools.wheel_model import ROOT

pytestmark = pytest.mark.slow

FLAGS = ("--max-num-seqs", "16", "--max-model-len", "2048", "--num-gpu-blocks-override", "1024")
# Chosen for names, numbers, punctuation, code and a second language.
PASSAGE = """\
In March 1861 the Kingdom of Italy was proclaimed in Turin, although Rome and Venice were not yet \
part of it. Victor Emmanuel II became king; Count Camillo Benso di Cavour, who had done more than \
anyone to bring this about, died only three months later. "What a pity," wrote a newspaper in \
London, "that he did not live to see Rome." The new state had some 22 million people, 78 % of whom \
could not read. It took another ten years, two wars and the defeat of France until the capital \
could be moved.

def area(width: float, height: float) -> float:
    # both in metres
    return width * height

La vie est belle, disait-elle toujours, et elle avait raison.
"""
QUOTED = """\
The quick brown fox jumps over the lazy dog near the river bank. The quick brown fox then sleeps \
under the old oak tree until the evening comes. Then the lazy dog wakes up and looks for the fox."""
REPEAT = f"Copy this text:\n\n{QUOTED}"
# What n-gram drafts may do without adapting, so that a short answer shows them.
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "adaptive": False})


@pytest.fixture(scope="module")
def server(smollm2_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(smollm2_file, log, *FLAGS) as started:
        yield started.wait_ready()


def chat(server: ServerProcess, question: str, **fields: Any) -> dict[str, Any]:
    """The one choice of a chat's answer."""
    answer = server.post(
        "/v1/chat/completions", model=SERVED_NAME,
        **{"messages": [{"role": "user", "content": question}], "temperature": 0, **fields},
    )  # fmt: skip
    (choice,) = answer.raise_for_status().json()["choices"]
    return dict(choice)


def complete(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/completions", model=SERVED_NAME, **{"temperature": 0, **fields})
    (choice,) = answer.raise_for_status().json()["choices"]
    return dict(choice)


def test_the_example_has_the_files_configuration(smollm2_file: Path) -> None:
    manifest = yaml.safe_load((ROOT / "examples" / "smollm2.yaml").read_text(encoding="utf-8"))
    found, said = open_checkpoint(smollm2_file).config, manifest["spec"]["model"]["config"]
    assert ModelFacts.from_hf_config(said) == ModelFacts.from_hf_config(found)


def test_texts_become_the_same_tokens(server: ServerProcess, oracle: Oracle) -> None:
    assert server.tokenize(PASSAGE) == oracle.tokenizer(PASSAGE).input_ids


def test_greedy_answers_of_chats_at_once(
    server: ServerProcess, oracle: Oracle, greedy_answers: dict[str, list[int]]
) -> None:
    def ask(question: str) -> str:
        return str(chat(server, question, max_tokens=48)["message"]["content"])

    with ThreadPoolExecutor(len(QUESTIONS)) as clients:
        found = dict(zip(QUESTIONS, clients.map(ask, QUESTIONS), strict=True))
    assert found == {question: oracle.text(ids) for question, ids in greedy_answers.items()}
    assert "Paris" in found[QUESTIONS[0]]


def test_greedy_tokens_of_plain_texts(server: ServerProcess, oracle: Oracle) -> None:
    for text in (PASSAGE[:200], "Once upon a time,", "1, 2, 3, 4,", "def fibonacci(n):\n"):
        wanted = oracle.greedy(oracle.tokenizer(text).input_ids, 32)
        found = complete(server, prompt=text, max_tokens=32, return_token_ids=True)
        assert [each for each in found["token_ids"] if each != oracle.tokenizer.eos_token_id] == (
            wanted
        )


def test_an_answer_ends_at_a_stop_string(
    server: ServerProcess, oracle: Oracle, greedy_answers: dict[str, list[int]]
) -> None:
    question = QUESTIONS[10]
    whole = oracle.text(greedy_answers[question])
    stop = next(word for word in ("Earth", "Venus", "Mercury") if word in whole)
    found = chat(server, question, max_tokens=48, stop=[stop])
    assert found["message"]["content"] == whole.partition(stop)[0]
    assert found["finish_reason"] == "stop"


def test_log_probabilities_are_transformers(server: ServerProcess, oracle: Oracle) -> None:
    text = PASSAGE[:300]
    ids = oracle.tokenizer(text).input_ids
    found = complete(server, prompt=text, max_tokens=8, logprobs=5, return_token_ids=True)
    wanted = oracle.logprobs([*ids, *found["token_ids"]])
    for step, (token, alternatives) in enumerate(
        zip(found["logprobs"]["token_logprobs"], found["logprobs"]["top_logprobs"], strict=True)
    ):
        row = wanted[len(ids) - 1 + step]
        assert token == pytest.approx(float(row[found["token_ids"][step]]), abs=2e-3)
        best = sorted(alternatives.values(), reverse=True)[:5]
        assert best == pytest.approx(row.topk(5).values.tolist(), abs=2e-3)


def test_perplexity_of_a_text_within_a_thousandth(server: ServerProcess, oracle: Oracle) -> None:
    ids = oracle.tokenizer(PASSAGE).input_ids
    found = complete(server, prompt=PASSAGE, max_tokens=1, echo=True, logprobs=0)
    ours = found["logprobs"]["token_logprobs"][1 : len(ids)]
    theirs = oracle.logprobs(ids)[range(len(ids) - 1), ids[1:]].tolist()
    assert len(ours) == len(theirs) > 150
    perplexity, wanted = (math.exp(-sum(each) / len(each)) for each in (ours, theirs))
    assert perplexity == pytest.approx(wanted, rel=1e-3)
    assert 5 < wanted < 50, "the text is one that the model understands"
    print(f"perplexity {perplexity:.5f}, transformers {wanted:.5f}, {len(theirs)} tokens")


@pytest.mark.parametrize(("name", "age", "city"), [("Alice", 30, "Paris"), ("Bob", 45, "London")])
def test_guided_json_means_something(server: ServerProcess, name: str, age: int, city: str) -> None:
    kinds = {"name": "string", "age": "integer", "city": "string"}
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in kinds.items()},
        "required": list(kinds),
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    question = (
        f"Write the name, age and city as JSON.\n\n{name} is {age} years old and lives in {city}."
    )
    found = chat(server, question, max_tokens=80, response_format=form)
    assert found["finish_reason"] == "stop"
    assert json.loads(found["message"]["content"]) == {"name": name, "age": age, "city": city}


def test_a_seed_gives_the_same_sample_whoever_else_is_served(server: ServerProcess) -> None:
    def draw(seed: int) -> str:
        fields = {"temperature": 0.9, "top_p": 0.95, "seed": seed, "max_tokens": 32}
        return str(chat(server, QUESTIONS[1], **fields)["message"]["content"])

    alone = [draw(seed) for seed in range(3)]
    with ThreadPoolExecutor(6) as clients:
        assert list(clients.map(draw, [0, 1, 2, 0, 1, 2])) == alone + alone
    assert len(set(alone)) == 3


def test_drafts_from_a_quoted_text_come_true_and_change_nothing(
    server: ServerProcess, smollm2_file: Path, tmp_path: Path
) -> None:
    plain = chat(server, REPEAT, max_tokens=80)
    flags = (*FLAGS, "--speculative-config", NGRAM)
    with server_process(smollm2_file, tmp_path / "log", *flags) as started:
        drafting = started.wait_ready()
        assert chat(drafting, REPEAT, max_tokens=80)["message"] == plain["message"]
        drafted, accepted = (
            drafting.metric(f"spec_decode_num_{what}_tokens_total")
            for what in ("draft", "accepted")
        )
    assert QUOTED[:40] in plain["message"]["content"]
    assert 0 < accepted <= drafted
    print(f"{accepted:g} of {drafted:g} drafts accepted")


def test_three_ranks_answer_as_one(
    smollm2_file: Path, oracle: Oracle, greedy_answers: dict[str, list[int]], tmp_path: Path
) -> None:
    """Its nine heads, and three of keys, divide by three and not by two."""
    flags = (*FLAGS, "--tensor-parallel-size", "3")
    with server_process(smollm2_file, tmp_path / "log", *flags) as started:
        ranks = started.wait_ready()
        for question in QUESTIONS[:3]:
            found = chat(ranks, question, max_tokens=48)["message"]["content"]
            assert found == oracle.text(greedy_answers[question])
