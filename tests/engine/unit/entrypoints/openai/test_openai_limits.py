"""What bounds a request over HTTP: priority, room in the queue, time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from pathlib import Path

import pytest

from atom.config import Config
from atom.entrypoints.http.client_identity import ClientIdentity
from atom.model_engine.front.request_stream import ReaderLimits
from atom.sizing.options.scheduling import Fairness
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually

# ---- waiting ------------------------------------------------------------------------------------


async def test_a_requests_priority_reaches_the_engine(rig: AppRig) -> None:
    await rig.chat(max_tokens=1, priority=-7)
    await rig.post("/v1/completions", prompt="ab", max_tokens=1, priority=7)
    await rig.post("/v1/completions", prompt="ab", max_tokens=1)
    assert [request.priority for request in rig.core.added] == [-7, 7, 0]
    response = await rig.chat(priority=101)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "priority"


async def test_whose_a_request_is_reaches_the_engine(rig: AppRig) -> None:
    for key in ("one", "two", "one"):
        headers = {"authorization": f"Bearer {key}"}
        body = {"prompt": ["ab", "cd"], "max_tokens": 1}
        await rig.client.post("/v1/completions", json=body, headers=headers)
    await rig.chat(max_tokens=1)
    first, same, other, _, again, _, chat = [request.client_id for request in rig.core.added]
    assert first == same == again != other
    assert chat == first.partition("/")[0]


async def test_more_waiting_requests_than_the_bound_are_told_to_come_back(config: Config) -> None:
    scheduler = dataclasses.replace(config.scheduler, max_waiting_requests=2)
    bounded = dataclasses.replace(config, scheduler=scheduler)
    async with serve_app(bounded, held=True) as rig:
        asking = [asyncio.create_task(rig.chat(max_tokens=2)) for _ in range(2)]
        await eventually(lambda: len(rig.core.added) == 2, "requests in the engine")
        refused = await rig.post("/v1/completions", prompt="ab")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["type"] == "rate_limit_error"
        rig.core.step()  # both have a token now, so none waits
        asking.append(asyncio.create_task(rig.chat(max_tokens=2)))
        await eventually(lambda: len(rig.core.added) == 3, "requests in the engine")
        rig.core.release()
        assert [(await task).status_code for task in asking] == [200, 200, 200]
        three_prompts = await rig.post("/v1/completions", prompt=["a", "b", "c"])
        assert three_prompts.status_code == 429, "all of its prompts or none"
        assert rig.engine.open_requests == 0


@pytest.mark.parametrize("fairness", ["clients", "off"])
async def test_a_crowd_that_fills_the_bound_leaves_others_room(
    config: Config, fairness: Fairness
) -> None:
    scheduler = dataclasses.replace(config.scheduler, max_waiting_requests=8, fairness=fairness)
    bounded = dataclasses.replace(config, scheduler=scheduler)

    async with serve_app(bounded, held=True) as rig:
        rig.state.clients = ClientIdentity(header="x-tenant")

        async def status(tenant: str, count: int = 1) -> int:
            body = {"prompt": ["ab"] * count, "max_tokens": 1}
            headers = {"x-tenant": tenant}
            return (
                await rig.client.post("/v1/completions", json=body, headers=headers)
            ).status_code

        asking = [asyncio.create_task(status("crowd", 8))]
        await eventually(lambda: len(rig.core.added) == 8, "requests in the engine")
        assert await status("crowd") == 429
        if fairness == "off":
            assert await status("other") == 429
        else:
            assert await status("other", 3) == 429, "half of an equal part is two"
            for number, tenant in enumerate(("other", "other", "third"), start=9):
                asking.append(asyncio.create_task(status(tenant)))
                await eventually(lambda n=number: len(rig.core.added) == n, "one more")  # type: ignore[misc]
            assert await status("other") == 429
            for number in range(12, 17):
                asking.append(asyncio.create_task(status(f"new {number}")))
                await eventually(lambda n=number: len(rig.core.added) == n, "one more")  # type: ignore[misc]
            assert await status("one more") == 429, "twice the bound is all"
        rig.core.release()
        assert set(await asyncio.gather(*asking)) == {200}
        assert rig.engine.open_requests == 0
        asking = [asyncio.create_task(status("crowd", 8))]
        assert await asking[0] == 200


# ---- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, 30.0], ids=["server's", "request asks for more"])
async def test_a_request_over_the_servers_time_fails_and_is_aborted(config: Config, asked) -> None:
    async with serve_app(config, held=True, request_timeout_seconds=0.05) as rig:
        response = await rig.chat(max_tokens=2, timeout_seconds=asked)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        assert rig.core.aborted == [1]
        assert rig.engine.open_requests == 0


async def test_a_stream_over_its_own_time_ends_with_an_error_event(config: Config) -> None:
    async with serve_app(config, held=True) as rig:
        fields = {"prompt": "ab", "max_tokens": 4, "timeout_seconds": 0.05}
        events = await rig.events("/v1/completions", **fields)
        assert [event["error"]["code"] for event in events] == ["timeout"]
        assert rig.core.aborted == [1]
        rig.core.release()
        assert (await rig.chat(max_tokens=2, timeout_seconds=30)).status_code == 200


async def test_the_shortest_of_a_requests_own_times_holds(config: Config) -> None:
    async with serve_app(config, held=True) as rig:
        body = {"prompt": "ab", "timeout": 30, "timeout_seconds": 40}
        headers = {"x-request-timeout": "0.05"}
        response = await rig.client.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == 504
        response = await rig.client.post("/v1/completions", json={**body, "timeout": 0.05})
        assert response.status_code == 504
        assert rig.engine.open_requests == 0


@pytest.mark.parametrize("header", ["soon", "0", "-1", "nan", "1e9", ""])
async def test_a_header_without_a_time_is_refused(rig: AppRig, header: str) -> None:
    headers = {"x-request-timeout": header}
    response = await rig.client.post("/v1/completions", json={"prompt": "ab"}, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-timeout"
    assert rig.core.added == []


# ---- readers ------------------------------------------------------------------------------------


async def test_a_client_that_reads_nothing_is_given_up_and_others_are_served(
    tmp_path: Path,
) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=4096))
    limits = ReaderLimits(tokens=40)
    async with serve_app(config, held=True, reader_limits=limits) as rig:
        body = json.dumps({"prompt": ["ab"] * 100, "max_tokens": 4000, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", rig.port))
            await loop.sock_sendall(deaf, head + body)
            await eventually(lambda: len(rig.core.added) == 100, "requests in the engine")
            for _ in range(4000):  # what the system's buffers take comes first
                if rig.core.aborted:
                    break
                rig.core.step()
                await asyncio.sleep(0)
            assert set(rig.core.aborted) == set(range(1, 101))
            asking = asyncio.create_task(rig.chat(max_tokens=2))
            await eventually(lambda: len(rig.core.added) == 101, "another one in the engine")
            rig.core.release()
            assert (await asking).status_code == 200
        assert rig.engine.open_requests == 0
