"""`atom serve --models`: three models behind one port, two of which share what is left of the
device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from atom.entrypoints.http.listener import listen
from atom.entrypoints.startup.next_steps import Address
from atom.entrypoints.startup.supported_endpoints import Offer
from atom.entrypoints.swap.models_process import ModelsProcess
from atom.entrypoints.swap.shared_device import Sharing
from atom.entrypoints.swap.swap_policy import SwapRule
from atom.model_engine.wire.engine_protocol import EngineReport
from tests.engine.swap.models_yaml import models_in, write_models
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.processes import standing_still
from tests.support.server.printed_steps import pasted_at
from tests.support.waiting import HANG_SECONDS, eventually, within

KEY = "key"
NAMES = ("chat", "code", "math")
OFFERS: list[Offer] = []

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(NAMES):
        make_tiny_checkpoint(folder / name, seed=seed)
    return write_models(folder, NAMES)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(models_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server with room for the pinned model and one of the others."""
    key = models_file.with_name("key")
    key.write_text(KEY)
    folder = str(models_file.with_name("batches"))
    models = models_in(
        models_file, "--api-key-file", str(key), "--max-waiting-requests", "3",
        "--batch-dir", folder,
    )  # fmt: skip
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    ready = asyncio.Event()

    def announce(started: Sequence[tuple[EngineReport, Offer]]) -> None:
        OFFERS[:] = [offer for _, offer in started]
        ready.set()

    process = ModelsProcess(models, Sharing(0.9, SwapRule(1.0, 0.0)), listener, announce=announce)
    running = asyncio.create_task(process.run())
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS, verify=False,
        headers={"authorization": f"Bearer {KEY}"},
    ) as client:  # fmt: skip
        starting = await client.get("/health")
        assert (starting.status_code, starting.json()["status"]) == (503, "starting")
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set(), running
        yield client
        process.stop()
        assert await asyncio.wait_for(running, HANG_SECONDS) == 0


async def ask(client: httpx.AsyncClient, name: str | None, **fields: Any) -> httpx.Response:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return await client.post("/v1/completions", json={**body, "model": name, **fields})


async def text(client: httpx.AsyncClient, name: str, **fields: Any) -> str:
    answer = await ask(client, name, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    return str(answer.json()["choices"][0]["text"])


async def series(client: httpx.AsyncClient, metric: str) -> dict[str, float]:
    """The values of a metric, by model."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith(f'{metric}{{model_name="')]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in found}


async def test_each_model_answers_by_its_name_whoever_is_awake(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == list(NAMES)
    assert len({card["weight_version"] for card in listed}) == 3
    assert (await client.get("/v1/models/math")).json() == listed[2]
    first = {name: await text(client, name) for name in NAMES}
    assert len(set(first.values())) == 3
    wakes = await series(client, "atom:model_wakes_total")
    for _ in range(2):
        assert {name: await text(client, name) for name in reversed(NAMES)} == first
    more = await series(client, "atom:model_wakes_total")
    assert more["chat"] == wakes["chat"] == 0
    assert more["code"] > wakes["code"]
    sleeping = await series(client, "atom:sleeping")
    assert sleeping["chat"] == 0
    assert sorted((sleeping["code"], sleeping["math"])) == [0, 1]
    finished = (await client.get("/metrics")).text
    assert finished.count("# TYPE atom:requests_finished_total counter") == 1
    assert (await client.get("/health")).json() == {"status": "ok"}


async def test_the_next_step_of_the_start_names_a_model(client: httpx.AsyncClient) -> None:
    assert {offer.name for offer in OFFERS} == set(NAMES)
    address = Address(str(client.base_url).rstrip("/"), needs_key=True)
    assert json.loads(await pasted_at(address, OFFERS, KEY))["model"] in NAMES


async def test_requests_for_all_at_once_are_answered(client: httpx.AsyncClient) -> None:
    alone = {name: await text(client, name, max_tokens=40) for name in NAMES}
    asked = [name for name in NAMES for _ in range(3)]
    found = await asyncio.gather(*(text(client, name, max_tokens=40) for name in asked))
    assert found == [alone[name] for name in asked]
    chat = {"model": "math", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    answer = await client.post("/v1/chat/completions", json={**chat, "max_tokens": 3})
    *events, last, _ = [line for line in answer.text.splitlines() if line]
    assert json.loads(events[0].removeprefix("data: "))["model"] == "math"
    assert last == "data: [DONE]" or "finish_reason" in last


async def test_a_request_that_runs_ends_before_its_model_sleeps(client: httpx.AsyncClient) -> None:
    expected = await text(client, "code", max_tokens=300)
    running = asyncio.create_task(text(client, "code", max_tokens=300))
    other = asyncio.create_task(text(client, "math"))
    assert await running == expected
    assert await other


async def test_no_more_requests_are_held_than_may_wait(client: httpx.AsyncClient) -> None:
    running = await begun(client, "code")
    with standing_still("core_main"):
        asked = [asyncio.create_task(ask(client, "math")) for _ in range(5)]
        ended = as_ended(asked)
        refused = [await within(anext(ended), "a refusal") for _ in range(2)]
    answers = await asyncio.gather(*asked)
    assert [answer.status_code for answer in answers].count(200) == 3
    assert [answer.status_code for answer in refused] == [503, 503]
    assert refused[0].headers["retry-after"]
    assert "wait for math to wake up" in refused[0].json()["error"]["message"]
    assert await running


# What takes a body that names a model, and a body for it.
OF_A_MODEL: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/v1/completions/render": {"prompt": "x"},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "x"}]},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {"max_tokens": 1}},
    "/api/chat": {"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "x", "options": {"num_predict": 1}},
    "/api/show": {},
}


@pytest.mark.parametrize("path", OF_A_MODEL)
async def test_every_route_answers_by_the_model_of_its_body_whoever_sleeps(
    client: httpx.AsyncClient, path: str
) -> None:
    for name in NAMES:
        answer = await client.post(path, json={"model": name, **OF_A_MODEL[path]})
        assert answer.status_code == 200, answer.text
    unknown = await client.post(path, json={"model": "poem", **OF_A_MODEL[path]})
    assert unknown.status_code == 404


async def test_ollamas_clients_see_all_models_and_ask_each(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/api/tags")).json()["models"]
    assert [each["name"] for each in listed] == list(NAMES)
    assert (await client.get("/api/version")).json()["version"]
    asked = {"prompt": "Once upon a time", "raw": True, "stream": False}
    for name in NAMES:
        body = {**asked, "model": f"{name}:latest", "options": {"num_predict": 8, "temperature": 0}}
        answer = await client.post("/api/generate", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["response"] == await text(client, name, ignore_eos=False)
        loaded = (await client.get("/api/ps")).json()["models"]
        assert {"chat", name} <= {each["name"] for each in loaded}
        assert len(loaded) == 2, "one of the others sleeps"
    assert (await client.post("/api/show", json={"name": "code:latest"})).status_code == 200
    for body in ({}, {"model": "poem"}):
        refused = await client.post("/api/chat", json={**body, **OF_A_MODEL["/api/chat"]})
        assert refused.status_code in (400, 404)
        assert isinstance(refused.json()["error"], str), "in Ollama's shape"


async def test_a_stored_batch_asks_each_model_by_its_lines(client: httpx.AsyncClient) -> None:
    alone = {name: await text(client, name) for name in NAMES}
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": f"{name} {turn}", "method": "POST", "url": "/v1/completions",
         "body": {**body, "model": name}}
        for turn in range(2) for name in (*NAMES, "poem", None)
    ]  # fmt: skip
    content = "\n".join(map(json.dumps, lines))
    file = await client.post("/v1/files", files={"file": ("f", content)}, data={"purpose": "batch"})
    assert file.status_code == 200, file.text
    order = {"endpoint": "/v1/completions", "completion_window": "24h"}
    made = await client.post("/v1/batches", json={"input_file_id": file.json()["id"], **order})
    found: dict[str, Any] = {}

    async def is_over() -> bool:
        found.update((await client.get(f"/v1/batches/{made.json()['id']}")).json())
        return found["status"] in ("completed", "failed", "expired")

    await eventually(is_over, "the batch ends")
    assert found["status"] == "completed", found
    answers = await kept_lines(client, found["output_file_id"])
    said = {id: each["body"]["choices"][0]["text"] for id, each in answers.items()}
    assert said == {f"{name} {turn}": alone[name] for name in NAMES for turn in range(2)}
    refused = await kept_lines(client, found["error_file_id"])
    assert {id: each["status_code"] for id, each in refused.items()} == {
        "poem 0": 404, "poem 1": 404, "None 0": 400, "None 1": 400,
    }  # fmt: skip


async def kept_lines(client: httpx.AsyncClient, file_id: str) -> dict[str, Any]:
    """The responses of a file of answers, by the names of their requests."""
    text = (await client.get(f"/v1/files/{file_id}/content")).text
    lines = [json.loads(line) for line in text.splitlines()]
    return {each["custom_id"]: each["response"] for each in lines}


async def test_what_names_no_model_is_told(client: httpx.AsyncClient) -> None:
    unknown = await ask(client, "poem")
    assert unknown.status_code == 404
    assert all(name in unknown.json()["error"]["message"] for name in NAMES)
    nobody = await ask(client, None)
    assert nobody.status_code == 400
    assert nobody.json()["error"]["param"] == "model"
    assert nobody.headers["x-request-id"]
    for body in (b"", b"[]", b'{"model": 7}', b'{"model": "\xff"}', b'{"a": ' + b"[" * 5000):
        refused = await client.post("/v1/completions", content=body)
        assert refused.status_code == 400, refused.text
    assert (await client.get("/v1/models/poem")).status_code == 404
    for path in ("/sleep", "/wake_up"):
        assert (await client.post(f"{path}?model=code")).status_code == 403
    assert (await client.post("/reset_prefix_cache?model=code")).status_code == 200
    info = await client.get("/server_info?model=math")
    assert info.json()["served_model_name"] == "math"
    keyless = await client.post("/v1/completions", json={}, headers={"authorization": ""})
    assert keyless.status_code == 401


async def test_a_client_that_leaves_while_it_is_held_leaves_nothing(
    client: httpx.AsyncClient,
) -> None:
    running = await begun(client, "code")
    with standing_still("core_main"):
        asked = asyncio.create_task(ask(client, "math"))
        await until_held(client, 1)
        asked.cancel()
        await until_held(client, 0)
    assert await running


async def begun(client: httpx.AsyncClient, name: str) -> asyncio.Task[str]:
    """A long request, once its model computes it."""
    await text(client, name)
    async with asyncio.timeout(HANG_SECONDS):
        while True:  # once more where it was over before it was seen
            running = asyncio.create_task(text(client, name, max_tokens=300))
            while not running.done():
                if (await series(client, "atom:requests_running"))[name]:
                    return running


async def as_ended(asked: list[asyncio.Task[httpx.Response]]) -> AsyncIterator[httpx.Response]:
    for each in asyncio.as_completed(asked):
        yield await each


async def until_held(client: httpx.AsyncClient, count: int) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while sum((await series(client, "atom:model_requests_held")).values()) != count:
            pass
