"""What the official client does by itself: it maps errors, tries again, gives up, leaves.

Its defaults are kept (two retries after 408, 409, 429 and whatever is 5xx) where a test is about
them. The HTTP application runs over an engine without a model that the test holds and releases;
the crowd at the end asks a real one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from atom.config import Config, EngineOptions, build_config
from atom.entrypoints.http.errors import RETRY_AFTER_SECONDS
from atom.entrypoints.server_parts import ListenOptions
from tests.support.engine_core.front_half import SERVED_NAME, build_test_config
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import AppRig, HttpRig, serve_app, serve_model
from tests.support.waiting import HANG_SECONDS, eventually

MESSAGES: list[Any] = [{"role": "user", "content": "abcd"}]
KEY = "sk-of-the-test"
CROWD = 200


def client_of(rig: HttpRig, **settings: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{rig.url}/v1", **{"api_key": "none", **settings})


async def ask(client: AsyncOpenAI, **fields: Any) -> Any:
    settings = {"model": SERVED_NAME, "messages": MESSAGES, "max_tokens": 4}
    return await client.chat.completions.create(**{**settings, **fields})


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kind", "param", "code"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature", None),
        ({"max_completion_tokens": 0}, openai.BadRequestError, "max_completion_tokens", None),
        ({"logprobs": True, "top_logprobs": 99}, openai.BadRequestError, "top_logprobs", None),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice", None),
        (
            {"moderation": {"model": "m"}},
            openai.BadRequestError,
            "moderation",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 500}]},
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
        ),
        ({"model": "gpt-5"}, openai.NotFoundError, "model", "model_not_found"),
    ],
)
async def test_a_refusal_is_the_clients_exception_with_its_fields(
    rig: AppRig, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str, code: str
) -> None:
    async with client_of(rig) as client:
        with pytest.raises(kind) as caught:
            await ask(client, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


async def test_a_wrong_key_is_an_authentication_error(config: Config) -> None:
    async with serve_app(config, api_key=KEY) as rig, client_of(rig, api_key="other") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await ask(client)
        assert caught.value.code == "invalid_api_key"
        assert (await ask(client.with_options(api_key=KEY))).choices


async def test_an_error_within_a_stream_is_raised_with_its_code(rig: AppRig) -> None:
    rig.core.held = True
    async with client_of(rig) as client:
        stream = await ask(client, stream=True, extra_body={"timeout_seconds": 0.05})
        with pytest.raises(openai.APIError, match=r"within 0\.05 s") as caught:
            _ = [chunk async for chunk in stream]
    assert caught.value.code == "timeout"


async def test_the_ids_of_a_request_are_told(rig: AppRig) -> None:
    async with client_of(rig) as client:
        answer = await ask(client, extra_headers={"X-Request-Id": "trace-7"})
        assert answer._request_id == "trace-7"
        raw = await client.chat.completions.with_raw_response.create(
            model=SERVED_NAME, messages=MESSAGES, max_tokens=1
        )
        assert raw.request_id
        assert raw.parse().id.startswith("chatcmpl-")


# ---- trying again -------------------------------------------------------------------------------


async def test_the_client_comes_back_after_a_full_queue(config: Config) -> None:
    full = build_test_config(config.model.path, max_waiting_requests=1)
    answers: list[httpx.Response] = []

    async def note(response: httpx.Response) -> None:
        answers.append(response)

    async with serve_app(full, held=True) as rig:
        http = httpx.AsyncClient(event_hooks={"response": [note]})
        async with client_of(rig, max_retries=1, http_client=http) as client:
            first = asyncio.create_task(ask(client))
            await eventually(lambda: len(rig.core.added) == 1, "one waits, which fills the queue")
            second = asyncio.create_task(ask(client))
            await eventually(lambda: len(answers) == 1, "the other was sent away")
            assert answers[0].status_code == 429
            assert answers[0].headers["retry-after"] == str(RETRY_AFTER_SECONDS)
            assert not second.done()
            rig.core.release()
            for answer in await asyncio.gather(first, second):
                assert answer.usage.completion_tokens == 4
    assert [response.status_code for response in answers].count(200) == 2


async def test_what_ran_out_of_its_time_is_not_sent_again(rig: AppRig) -> None:
    rig.core.held = True
    async with client_of(rig, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(client, extra_body={"timeout_seconds": 0.05})
    assert caught.value.status_code == 504
    assert len(rig.core.added) == 1


# ---- a server that ends -------------------------------------------------------------------------


async def test_a_client_keeps_its_idle_connections_for_less_time_than_the_server() -> None:
    """Else it sends a request just when the server closes, and finds its connection reset."""
    kept_seconds = ListenOptions().keep_alive_seconds
    async with AsyncOpenAI(base_url="http://x", api_key="none") as client:
        pool = client._client._transport._pool  # type: ignore[attr-defined]
        assert 0 < pool._keepalive_expiry < kept_seconds
    nginx_seconds = 60  # also the usual load balancers'
    assert nginx_seconds < kept_seconds


async def test_a_server_that_ends_lets_go_of_its_connections(rig: AppRig) -> None:
    """So that the next request of a client that keeps connections reaches another server."""
    rig.core.held = True
    open_chat = asyncio.create_task(rig.chat("abcd", max_tokens=2))
    await eventually(lambda: len(rig.core.added) == 1, "a request is open")
    assert "connection" not in (await rig.client.get("/v1/models")).headers
    draining = asyncio.create_task(rig.engine.drain(60))
    await eventually(lambda: rig.state.is_ending, "draining")
    refused = await rig.chat("x")
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    assert (await rig.client.get("/health")).headers["connection"] == "close"
    rig.core.release()
    finished = await open_chat
    assert (finished.status_code, finished.headers["connection"]) == (200, "close")
    assert await draining == 0


async def test_the_client_goes_on_with_another_server(config: Config) -> None:
    """Two servers behind one address, as behind a Service: new connections reach the second."""
    async with serve_app(config) as first, serve_app(config) as second:
        target = first
        connections = 0

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target.port)
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        service = await asyncio.start_server(carry, "127.0.0.1", 0)
        port = service.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=1) as client:
            await ask(client)
            await ask(client)
            assert connections == 1, "the client keeps its connection"
            target = second
            await first.engine.drain(0)
            assert (await ask(client)).usage.completion_tokens == 4
        assert len(first.core.added) == 2
        assert len(second.core.added) == 1
        service.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    writer.close()


# ---- clients that leave -------------------------------------------------------------------------


async def leave_by_closing(client: AsyncOpenAI, rig: AppRig) -> None:
    stream = await ask(client, stream=True)
    await eventually(lambda: bool(rig.core.added), "it runs")
    rig.core.step()
    await anext(aiter(stream))
    await stream.close()


async def leave_by_the_helper(client: AsyncOpenAI, rig: AppRig) -> None:
    helper = client.chat.completions.stream(model=SERVED_NAME, messages=MESSAGES)
    async with helper as stream:
        await eventually(lambda: bool(rig.core.added), "it runs")
        rig.core.step()
        await anext(aiter(stream))


async def leave_by_cancelling(client: AsyncOpenAI, rig: AppRig) -> None:
    asking = asyncio.create_task(ask(client))
    await eventually(lambda: bool(rig.core.added), "it runs")
    asking.cancel()


async def leave_by_timing_out(client: AsyncOpenAI, rig: AppRig) -> None:
    async def when_it_runs(event: str, _: Any) -> None:
        if event == "http11.receive_response_headers.started":  # its time to read begins then
            await eventually(lambda: bool(rig.core.added), "it runs")

    async def trace(request: httpx.Request) -> None:
        request.extensions["trace"] = when_it_runs

    patience = httpx.Timeout(HANG_SECONDS, read=0.1)
    async with httpx.AsyncClient(event_hooks={"request": [trace]}) as http:
        with pytest.raises(openai.APITimeoutError):
            await ask(client.with_options(timeout=patience, max_retries=0, http_client=http))


@pytest.mark.parametrize(
    "leave", [leave_by_closing, leave_by_the_helper, leave_by_cancelling, leave_by_timing_out]
)
async def test_however_the_client_leaves_its_request_is_aborted(rig: AppRig, leave: Any) -> None:
    rig.core.held = True
    async with client_of(rig) as client:
        await leave(client, rig)
        await eventually(lambda: rig.core.aborted == [1], "its request was aborted")
    assert rig.engine.open_requests == 0


# ---- a crowd ------------------------------------------------------------------------------------


async def test_two_hundred_streams_of_one_client_all_end_well(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "qwen3")
    config = build_config(
        EngineOptions.of(
            model=str(checkpoint), served_model_name=SERVED_NAME, device="cpu", num_kv_blocks=600
        )
    )

    async def one(client: AsyncOpenAI, number: int) -> tuple[str | None, int]:
        reason, usage = None, None
        stream = await ask(
            client,
            messages=[{"role": "user", "content": f"number {number}"}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                reason = choice.finish_reason or reason
        assert usage is not None
        return reason, usage.completion_tokens

    async with serve_model(config) as rig:
        async with client_of(rig, max_retries=0) as client:
            ends = await asyncio.gather(*(one(client, number) for number in range(CROWD)))
        assert Counter(ends) == {("length", 12): CROWD}
        await rig.assert_well()
