"""Both legs of divided requests over HTTP, with the bodies that routers were recorded to send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.role_servers import role_servers
from tests.support.server.server_process import SERVED_NAME, ServerProcess
from tests.support.waiting import HANG_SECONDS, wait_until

HEADER = "x-atom-kv-transfer"
_ASKED = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip
# SGLang's fields at their defaults, which vllm-router adds to both legs.
_ROUTERS_OWN = {
    "no_stop_trim": False, "ignore_eos": False, "continue_final_message": False,
    "skip_special_tokens": True, "separate_reasoning": True, "stream_reasoning": True,
    "return_hidden_states": False, "logprobs": False,
}  # fmt: skip
_PROMPT = "The pages of this prompt are computed by one engine and read by another one. " * 3


@dataclass(frozen=True)
class Pair:
    producer: ServerProcess
    consumer: ServerProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    model = make_tiny_checkpoint(folder / "model", max_position_embeddings=1024)
    with role_servers(model, folder, kv_connector="AtomConnector") as servers:
        yield Pair(*servers)


def post(server: ServerProcess, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    response = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=HANG_SECONDS)
    assert response.status_code == 200, response.text
    return response


@dataclass(frozen=True)
class Asked:
    """A client's request, and how its answer is read."""

    path: str
    body: dict[str, Any]

    def text(self, answer: dict[str, Any]) -> str:
        (choice,) = answer["choices"]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])


def chat(topic: str, **fields: Any) -> Asked:
    message = {"role": "user", "content": f"{topic}: {_PROMPT}"}
    body = {"model": SERVED_NAME, "messages": [message], "max_tokens": 20, "seed": 5, **fields}
    return Asked("/v1/chat/completions", body)


def completion(topic: str, **fields: Any) -> Asked:
    prompt = f"{topic}: {_PROMPT}"
    body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": 20, "seed": 5, **fields}
    return Asked("/v1/completions", body)


def by_vllm_router(pair: Pair, asked: Asked) -> tuple[dict[str, Any], httpx.Response]:
    """Both legs as vllm-router 0.1.17 sends them with `--kv-connector nixl`."""
    own = dict(_ROUTERS_OWN)
    if asked.path == "/v1/completions":
        own["echo"] = False
        del own["logprobs"]
    name = "___prefill_addr_127.0.0.1:1___decode_addr_127.0.0.1:2_" + "a" * 32
    one = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "stream": False}
    prefill = {**asked.body, **own, **one, "kv_transfer_params": _ASKED}
    # The token is empty, and the space before it is no part of a header's value.
    headers = {"authorization": "Bearer", "x-request-id": name}
    answer = post(pair.producer, asked.path, prefill, **headers).json()
    params = {**answer["kv_transfer_params"], "a_key_of_the_router": 1}
    decode = {**asked.body, **own, "kv_transfer_params": params}
    return answer, post(pair.consumer, asked.path, decode, **headers)


def by_smg(pair: Pair, asked: Asked) -> tuple[dict[str, Any], httpx.Response]:
    """Both legs as smg 1.13.0 sends them with `--backend vllm`: the first without params."""
    prefill = {**asked.body, "max_completion_tokens": 1, "stream": False}
    headers = {"x-request-id": "the-clients-own"}
    answer = post(pair.producer, asked.path, prefill, **headers).json()
    decode = {**asked.body, "kv_transfer_params": answer["kv_transfer_params"]}
    return answer, post(pair.consumer, asked.path, decode, **headers)


@pytest.mark.parametrize("router", [by_vllm_router, by_smg])
@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_divided_answer_is_that_of_one_server(
    pair: Pair, router: Any, ask: Any, temperature: float
) -> None:
    asked = ask(f"{router.__name__} {temperature}", temperature=temperature)
    answer, decoded = router(pair, asked)
    whole = post(pair.producer, asked.path, asked.body).json()

    assert asked.text(decoded.json()) == asked.text(whole)
    assert decoded.headers[HEADER].startswith("transferred;tokens=")
    assert answer["usage"]["completion_tokens"] == 1
    assert isinstance(answer["usage"]["prompt_tokens_details"]["cached_tokens"], int)
    cached = decoded.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    params = answer["kv_transfer_params"]
    assert cached == params["remote_num_tokens"] > 64
    assert "kv_transfer_params" not in whole


def test_the_object_of_a_prefill_leg_has_what_routers_pass_on(pair: Pair) -> None:
    asked = chat("object")
    body = {**asked.body, "max_tokens": 1, "stream": False, "kv_transfer_params": _ASKED}
    params = post(pair.producer, asked.path, body).json()["kv_transfer_params"]

    atom = params.pop("atom")
    blocks = params.pop("remote_block_ids")
    port, tokens = params.pop("remote_port"), params.pop("remote_num_tokens")
    name = params.pop("remote_request_id")
    assert params == {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id":
        "engine-kv_producer", "remote_host": "127.0.0.1", "tp_size": 1, "dcp_size": 1,
        "pp_size": 1, "remote_blocks_expiry_time": None, "transfer_mode": "pull",
        "remote_dp_rank": 0, "dp_rank": 0,
    }  # fmt: skip
    assert len(blocks) == 1
    assert len(blocks[0]) * 16 == tokens
    assert port > 0
    assert name.startswith("chatcmpl-")
    assert atom["protocol"] == 1
    assert len(atom["ticket"]) == len(atom["layout"]) == 32


def test_a_streamed_decode_leg_reports_its_pages_in_the_header(pair: Pair) -> None:
    asked = completion("stream", temperature=0.0)
    whole = asked.text(post(pair.producer, asked.path, asked.body).json())
    leg = {**asked.body, "max_tokens": 1, "kv_transfer_params": _ASKED}
    params = post(pair.producer, asked.path, leg).json()["kv_transfer_params"]
    body = {**asked.body, "stream": True, "kv_transfer_params": params}
    url = f"{pair.consumer.url}{asked.path}"
    with httpx.stream("POST", url, json=body, timeout=HANG_SECONDS) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]

    assert response.headers[HEADER].startswith("transferred;tokens=")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["choices"][0]["text"] for event in events) == whole


def test_token_ids_go_through_both_legs(pair: Pair) -> None:
    ids = [(7 * each) % 200 + 10 for each in range(100)]
    path, sampling = "/inference/v1/generate", {"max_tokens": 12, "temperature": 0.0}
    whole = post(pair.producer, path, {"token_ids": ids, "sampling_params": sampling}).json()
    leg = {"token_ids": ids, "sampling_params": {**sampling, "max_tokens": 1}}
    answer = post(pair.producer, path, {**leg, "kv_transfer_params": _ASKED}).json()
    decode = {"token_ids": ids, "sampling_params": sampling}
    params = answer["kv_transfer_params"]
    decoded = post(pair.consumer, path, {**decode, "kv_transfer_params": params})

    assert decoded.headers[HEADER].startswith("transferred;tokens=96;")
    assert decoded.json()["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]


def test_a_ticket_is_read_once(pair: Pair) -> None:
    first, _ = by_smg(pair, completion("once", temperature=0.0))
    other = completion("another prompt", temperature=0.0)
    whole = other.text(post(pair.producer, other.path, other.body).json())
    decode = {**other.body, "kv_transfer_params": first["kv_transfer_params"]}
    again = post(pair.consumer, other.path, decode)

    assert again.headers[HEADER] == "recomputed;reason=gone"
    assert other.text(again.json()) == whole


def test_pages_of_another_prompt_are_not_taken(pair: Pair) -> None:
    asked, other = (completion(name, temperature=0.0) for name in ("mine", "somebody else's"))
    whole = other.text(post(pair.producer, other.path, other.body).json())
    leg = {**asked.body, "max_tokens": 1, "kv_transfer_params": _ASKED}
    params = post(pair.producer, asked.path, leg).json()["kv_transfer_params"]
    answer = post(pair.consumer, other.path, {**other.body, "kv_transfer_params": params})

    assert answer.headers[HEADER] == "recomputed;reason=missing"
    assert other.text(answer.json()) == whole


@pytest.mark.parametrize(
    ("changed", "header"),
    [
        ({"remote_port": 9}, "recomputed;reason=unreachable"),
        ({"remote_host": "192.0.2.1"}, "recomputed;reason=unreachable"),
        ({"remote_block_ids": None}, "recomputed;reason=nothing_kept"),
        ({"remote_block_ids": []}, "recomputed;reason=nothing_kept"),
        ({"atom": None}, "recomputed;reason=foreign"),
    ],
)
def test_pages_that_cannot_be_read_cost_a_computation(
    pair: Pair, changed: dict[str, Any], header: str
) -> None:
    asked = completion(f"lost {changed}", temperature=0.0)
    whole = asked.text(post(pair.producer, asked.path, asked.body).json())
    leg = {**asked.body, "max_tokens": 1, "kv_transfer_params": _ASKED}
    params = post(pair.producer, asked.path, leg).json()["kv_transfer_params"]
    decode = {**asked.body, "kv_transfer_params": {**params, **changed}}
    answer = post(pair.consumer, asked.path, decode)

    assert answer.headers[HEADER] == header
    assert asked.text(answer.json()) == whole


def test_several_answers_are_computed_where_they_are_asked_for(pair: Pair) -> None:
    asked = completion("several", n=2)
    leg = {**asked.body, "n": 1, "max_tokens": 1, "kv_transfer_params": _ASKED}
    params = post(pair.producer, asked.path, leg).json()["kv_transfer_params"]
    answer = post(pair.consumer, asked.path, {**asked.body, "kv_transfer_params": params})
    assert answer.headers[HEADER] == "recomputed;reason=n"
    assert len(answer.json()["choices"]) == 2


def test_routers_learn_the_role_from_the_server(pair: Pair) -> None:
    told = pair.producer.get("/server_info").json()
    facts = ("kv_connector", "kv_role", "kv_engine_id", "kv_block_size", "dp_size", "max_num_seqs")
    assert [told[name] for name in facts] == [
        "AtomConnector", "kv_producer", "engine-kv_producer", 16, 1, 8,
    ]  # fmt: skip
    assert told["model_id"] == SERVED_NAME
    info = pair.consumer.get("/kv_transfer_info").json()
    assert info == {"tp_size": 1, "dp_size": 1, "kv_role": "kv_consumer", "handshake_port": 0}


def test_metrics_count_both_directions(pair: Pair) -> None:
    names = ("tokens_total", "requests_total", "seconds_count")

    def told() -> list[float]:
        own = [pair.consumer.metric(f"kv_transfer_{name}") for name in names]
        both = (pair.producer, pair.consumer)
        return own + [server.metric("kv_transfer_bytes_total") for server in both]

    before = told()
    _, decoded = by_smg(pair, completion("counted", temperature=0.0))
    tokens = int(decoded.headers[HEADER].split(";")[1].removeprefix("tokens="))
    page_bytes = 16 * 2 * 2 * 2 * 16 * 4  # tokens, layers, K and V, heads, elements, float32
    moved = tokens // 16 * page_bytes
    # One leg; its whole wait, the handshake and the copy.
    expected = [tokens, 1, 3, moved, moved]
    wait_until(
        lambda: [b - a for a, b in zip(before, told(), strict=True)] == expected,
        "both servers have told their numbers",
    )
