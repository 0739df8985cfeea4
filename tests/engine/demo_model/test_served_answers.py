"""The demo model answers its listed questions through the real server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tools.demo_model.code_facts import facts_of_code
from tools.demo_model.evaluation import Question, read_questions
from tools.train_demo_model import QUESTIONS as LISTED
from tools.train_demo_model import ROOT

CHECKPOINT = ROOT / "examples" / "models" / "atom-tiny"
QUESTIONS = read_questions(LISTED, facts_of_code())
# One of them is known to miss (the model card says which); another may under other
# rounding. The promise is forty.
LEAST_RIGHT = len(QUESTIONS) - 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(CHECKPOINT, log, "--max-num-seqs", "32") as server:
        yield server.wait_ready()


def test_listed_questions_are_answered_greedily(server: ServerProcess) -> None:
    assert LEAST_RIGHT >= 40
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def answer(question: Question) -> str:
            messages: list[Any] = [{"role": "user", "content": question.question}]
            if question.system:
                messages.insert(0, {"role": "system", "content": question.system})
            done = client.chat.completions.create(
                model=SERVED_NAME, messages=messages, temperature=0, max_tokens=200
            )
            assert done.choices[0].finish_reason == "stop", question
            return done.choices[0].message.content or ""

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(answer, QUESTIONS))
    wrong = [
        f"{question.question} → {text}"
        for question, text in zip(QUESTIONS, answers, strict=True)
        if not all(phrase.lower() in text.lower() for phrase in question.expect)
    ]
    assert len(QUESTIONS) - len(wrong) >= LEAST_RIGHT, wrong
