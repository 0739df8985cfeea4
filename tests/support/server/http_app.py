"""The HTTP application on a real socket inside the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from openai import AsyncOpenAI

from atom.config import Config
from atom.entrypoints.api_server import build_app
from atom.entrypoints.http.access import AccessKeys
from atom.entrypoints.http.access_options import AccessOptions
from atom.entrypoints.http.api_key import FollowedKeys, KeyFile
from atom.entrypoints.http.client_identity import ClientIdentity
from atom.entrypoints.http.http_protocol import BoundedHttpProtocol
from atom.entrypoints.http.listener import BACKLOG, listen
from atom.entrypoints.http.loadable_paths import LoadableByRequests
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.recording.load_recorder import LoadRecorder
from atom.entrypoints.server_parts import ListenOptions
from atom.entrypoints.stored_batches.service import BatchService
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.request_stream import ReaderLimits
from tests.support.engine_core.front_half import EchoCore
from tests.support.waiting import HANG_SECONDS, eventually

# As our servers keep them: uvicorn's own 5 s are those after which a client is to ask again, which
# then finds its connection closed now and then.
_KEEP_ALIVE_SECONDS = ListenOptions().keep_alive_seconds


class QuietServer(uvicorn.Server):
    """Leaves the test runner's signal handlers alone, and ends as soon as it is told to.

    uvicorn looks every tenth of a second whether to end, and waits another for its connections:
    for hundreds of servers of a test each, more than all else that they do.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)  # headers of every answer
        await self.ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Of connections without a request; with one, it is uvicorn's own."""
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # they are lost in the loop's next turn
        if self.server_state.connections or self.server_state.tasks:
            return await super().shutdown(sockets)
        for server in self.servers:
            server.close()
            await server.wait_closed()
        for listener in sockets or ():
            listener.close()
        return None


@dataclass(frozen=True)
class Access:
    """Who may call what. keys: None for those of `api_key`; loadable: the places that requests may
    load from."""

    keys: AccessKeys | None = None
    loadable: LoadableByRequests = field(default_factory=LoadableByRequests)


NO_KEYS = Access()


def loads_from(*places: str) -> Access:
    """Let requests load adapters and weights out of these places."""
    options = AccessOptions(lora_paths=places, weights_paths=places)
    return Access(loadable=LoadableByRequests.of(options, ""))


@dataclass
class HttpRig:
    """A server in the test's event loop, and a client of it. batches: its stored batches, which
    are answered while they are `running`."""

    state: ServerState
    engine: AsyncLLMEngine
    client: httpx.AsyncClient
    port: int
    batches: BatchService | None = field(default=None, kw_only=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai_client(self, key: str = "none") -> AsyncOpenAI:
        """The official one, which here asks only once; to be closed."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

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

    async def metrics(self) -> dict[str, float]:
        """The sum of the series of each metric, by names without `atom:`."""
        found: dict[str, float] = {}
        for line in (await self.client.get("/metrics")).text.splitlines():
            if line.startswith("atom:"):
                series, _, value = line.removeprefix("atom:").rpartition(" ")
                name = series.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    async def assert_well(self) -> None:
        """Whatever happened before: a normal request is answered, and nothing is left behind."""
        good = await self.chat("still there?", max_tokens=2)
        assert good.status_code == 200, good.text
        assert self.engine.open_requests == 0

        async def blocks_are_free() -> bool:
            return not any(await self.engine.call_utility("check_integrity"))

        # An abort is on its way for a moment.
        await eventually(blocks_are_free, "all blocks are free")


@dataclass
class AppRig(HttpRig):
    core: EchoCore


@contextlib.asynccontextmanager
async def serve_app(
    config: Config,
    *,
    request_timeout_seconds: float | None = None,
    reader_limits: ReaderLimits | None = None,
    api_key: str | None = None,
    api_key_file: KeyFile | None = None,
    allowed_origins: Sequence[str] = (),
    console: bool = True,
    access: Access = NO_KEYS,
    batches: BatchService | None = None,
    recorder: LoadRecorder | None = None,
    **core_options: Any,
) -> AsyncIterator[AppRig]:
    """The HTTP application over an engine without a model."""
    cores: list[EchoCore] = []

    def make_core(config: Config, on_event: Any) -> EchoCore:
        cores.append(EchoCore(config, on_event, **core_options))
        return cores[0]

    engine = AsyncLLMEngine(
        config,
        core_factory=make_core,
        request_timeout_seconds=request_timeout_seconds,
        reader_limits=reader_limits,
    )
    serving = serve_engine(
        *(engine, api_key, allowed_origins, api_key_file, console),
        access=access,
        batches=batches,
        recorder=recorder,
    )
    async with serving as rig:
        if core_options.get("ready_on_start", True):
            await engine.wait_ready()
        yield AppRig(rig.state, rig.engine, rig.client, rig.port, cores[0], batches=batches)


@contextlib.asynccontextmanager
async def serve_model(
    config: Config,
    *,
    api_key: str | None = None,
    access: Access = NO_KEYS,
    batches: BatchService | None = None,
    **engine_options: Any,
) -> AsyncIterator[HttpRig]:
    """The HTTP application over a real engine process."""
    engine = AsyncLLMEngine(config, **engine_options)
    async with serve_engine(engine, api_key, access=access, batches=batches) as rig:
        await rig.engine.wait_ready()
        yield rig


@contextlib.asynccontextmanager
async def serve_engine(
    engine: AsyncLLMEngine,
    api_key: str | None = None,
    allowed_origins: Sequence[str] = (),
    api_key_file: KeyFile | None = None,
    console: bool = True,
    *,
    access: Access = NO_KEYS,
    batches: BatchService | None = None,
    recorder: LoadRecorder | None = None,
) -> AsyncIterator[HttpRig]:
    """The HTTP application over this engine, which it starts and ends."""
    users = FollowedKeys(() if api_key is None else (api_key,), api_key_file)
    keys = AccessKeys(users) if access.keys is None else access.keys
    clients = ClientIdentity(num_keys=keys.users.count)
    state = ServerState(engine=engine, loadable=access.loadable, clients=clients)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    settings = uvicorn.Config(
        build_app(
            state,
            keys=keys,
            allowed_origins=allowed_origins,
            console=console,
            shows_tokenizer=True,
            batches=batches,
            recorder=recorder,
        ),
        log_config=None,
        access_log=False,
        http=BoundedHttpProtocol,
        lifespan="off",
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
    )
    server = QuietServer(settings)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{port}"
    try:
        await engine.start()
        # Nothing here is TLS, and to read the system's certificates takes 20 ms.
        async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, verify=False) as client:
            yield HttpRig(state, engine, client, port, batches=batches)
    finally:  # a test that fails leaves no engine's process to compute on
        await engine.shutdown()
        state.turns.close()
        server.ended.set()
        await asyncio.wait_for(serving, HANG_SECONDS)
