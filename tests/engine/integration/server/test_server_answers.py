"""The real server, engine process included, answering over HTTP."""

from __future__ import annotations

import concurrent.futures
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from openai import APIStatusError, BadRequestError, OpenAI

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tests.support.server.unanswered import unanswered
from tests.support.waiting import wait_until

CONTEXT = 4096


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, "qwen3", max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--max-num-batched-tokens", "64", "--max-num-seqs", "32", "--num-kv-blocks", "600")
    with server_process(checkpoint, log, *flags) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def greedy_text_of_transformers(checkpoint: Path, messages: list[dict[str, str]], n: int) -> str:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=n, do_sample=False)[0]
    return str(tokenizer.decode(ids[prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def test_the_official_client_streams_the_chat_that_transformers_generates(
    client: OpenAI, checkpoint: Path
) -> None:
    messages = [{"role": "user", "content": "the cat and the dog, " * 12}]
    expected = greedy_text_of_transformers(checkpoint, messages, 24)
    stream = client.chat.completions.create(
        model=SERVED_NAME,
        messages=messages,  # type: ignore[arg-type]
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    # In how many chunks is the reader's luck; test_openai_api.py shows that each token is sent.
    text, usage, reason = "", None, None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    assert text == expected
    assert usage is not None
    assert reason in ("length", "stop")
    assert usage.completion_tokens <= 24


def test_many_clients_at_once_get_what_they_would_get_alone(server: ServerProcess) -> None:
    prompts = [f"{'hello the world ' * (i % 5 + 1)} number {i}" for i in range(24)]

    def answer(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        with server.client() as http:
            response = http.post("/v1/completions", json=body)
        assert response.status_code == 200
        return str(response.json()["choices"][0]["text"])

    alone = [answer(prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(answer, prompts))
    assert together == alone


def test_a_seed_gives_the_same_text_again_and_other_seeds_others(client: OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.completions.create(
            model=SERVED_NAME, prompt="hello", max_tokens=24, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) == 4


def test_a_stop_string_of_the_answer_ends_it_without_a_trace(server: ServerProcess) -> None:
    body = {"prompt": "hello the", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    with server.client() as http:
        whole = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        stop = whole[10:13]
        response = http.post("/v1/completions", json={**body, "stop": stop}).json()
    (choice,) = response["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert response["usage"]["completion_tokens"] < 60
    wait_until(lambda: server.metric("requests_running") == 0, "the rest was aborted")


def test_a_repeated_prompt_comes_from_the_prefix_cache_and_usage_tells(
    server: ServerProcess,
) -> None:
    body = {"prompt": "a long beginning " * 20, "max_tokens": 4, "temperature": 0}
    with server.client() as http:
        first = http.post("/v1/completions", json=body).json()
        second = http.post("/v1/completions", json=body).json()
    assert first["choices"] == second["choices"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 16
    assert cached % 16 == 0


def test_bad_requests_are_refused_and_the_server_goes_on(
    server: ServerProcess, client: OpenAI
) -> None:
    with pytest.raises(BadRequestError, match="max_tokens must be at least 1"):
        client.completions.create(model=SERVED_NAME, prompt="x", max_tokens=-1)
    with pytest.raises(APIStatusError, match=SERVED_NAME) as caught:
        client.completions.create(model="gpt-5", prompt="x")
    assert caught.value.status_code == 404
    with server.client() as http:
        for body in (b"", b"{", b'{"messages": []}', b"[" * 10_000, os.urandom(1000)):
            assert http.post("/v1/chat/completions", content=body).status_code == 400
        long_prompt = {"prompt": [1] * CONTEXT}
        refused = http.post("/v1/completions", json=long_prompt)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert refused.json()["error"]["message"].count(str(CONTEXT)) == 2
        fitting = {"prompt": [1] * (CONTEXT - 1), "max_tokens": 5}
        answer = http.post("/v1/completions", json=fitting)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 1
    assert client.completions.create(model=SERVED_NAME, prompt="x", max_tokens=2).choices


def test_a_reader_that_leaves_frees_its_place_and_its_blocks(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    before = server.metric("generation_tokens_total")
    with server.client() as http, http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: server.metric("requests_running") == 0, "the request was aborted")
    wait_until(lambda: server.metric("kv_cache_blocks_used") == 0, "its blocks are free")
    assert server.metric("generation_tokens_total") - before < 4000


def test_a_client_that_gives_up_waiting_frees_its_place(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
    with unanswered(server, "/v1/completions", body, "x-request-id: impatient\r\n"):
        wait_until(lambda: server.metric("requests_running") == 1, "it runs")
    wait_until(lambda: server.metric("requests_running") == 0, "the request was aborted")
    line = '"POST /v1/completions HTTP/1.1" 499 impatient\n'
    wait_until(lambda: server.log.count(line) == 1, "the access log tells")


def test_the_access_log_names_each_request_by_its_id(server: ServerProcess) -> None:
    with server.client() as http:
        given = http.get("/v1/models?a=%25s", headers={"x-request-id": "mine-1"})
        made = http.post("/v1/completions", content=b"{")
    assert given.status_code == 200
    wait_until(
        lambda: (
            '"GET /v1/models?a=%25s HTTP/1.1" 200 mine-1\n' in server.log
            and f'"POST /v1/completions HTTP/1.1" 400 {made.headers["x-request-id"]}\n'
            in server.log
        ),
        "both are in the log",
    )
    wait_until(lambda: server.metric("kv_cache_blocks_used") == 0, "its blocks are free")


def test_server_info_is_what_the_startup_table_says(server: ServerProcess) -> None:
    with server.client() as http:
        info = http.get("/server_info").json()
    assert info["kv_tokens"] == 600 * 16
    assert info["served_model_name"] == SERVED_NAME
    assert info["versions"]["torch"] == torch.__version__
    assert info["versions"]["atom"] == info["version"]
    assert f"600 blocks of {info['block_size']} tokens = 9,600 tokens" in server.log
    assert info["device"] in server.log
    for row in info["concurrency"]:
        assert f"{row['sequences']:,} sequences" in server.log
    assert server.log.count("fits at") == len(info["concurrency"])  # the table comes once
    json.dumps(info)
