"""The HTTP application on a real socket inside the test's event loop, over an EchoCore."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from atom.config import Config
from atom.entrypoints.openai.api_server import build_app
from atom.entrypoints.openai.state import ServerState
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from tests.support.front_half import EchoCore

LIMIT_SECONDS = 20


class QuietServer(uvicorn.Server):
    """Leaves the test runner's signal handlers alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@dataclass
class AppRig:
    state: ServerState
    engine: AsyncLLMEngine
    core: EchoCore
    client: httpx.AsyncClient
    port: int

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=fields)

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return await self.post("/v1/chat/completions", **{"messages": messages, **fields})

    async def events(self, path: str, **fields: Any) -> list[Any]:
        """The events of a stream: parsed JSON, and "[DONE]" as it is."""
        events = []
        body = {"stream": True, **fields}
        async with self.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line:
                    assert line.startswith("data: "), line
                    data = line.removeprefix("data: ")
                    events.append(data if data == "[DONE]" else json.loads(data))
        return events


@contextlib.asynccontextmanager
async def serve_app(
    config: Config,
    *,
    request_timeout_seconds: float | None = None,
    api_key: str | None = None,
    **core_options: Any,
) -> AsyncIterator[AppRig]:
    cores: list[EchoCore] = []

    def make_core(config: Config, on_event: Any) -> EchoCore:
        cores.append(EchoCore(config, on_event, **core_options))
        return cores[0]

    engine = AsyncLLMEngine(
        config, core_factory=make_core, request_timeout_seconds=request_timeout_seconds
    )
    state = ServerState(engine=engine)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    settings = uvicorn.Config(
        build_app(state, api_key=api_key),
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = QuietServer(settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await engine.start()
    if core_options.get("ready_on_start", True):
        await engine.wait_ready()
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_SECONDS) as client:
        yield AppRig(state, engine, cores[0], client, port)
    await engine.shutdown()
    server.should_exit = True
    await asyncio.wait_for(serving, LIMIT_SECONDS)
