"""ModelRouter: one HTTP application over several models, each with an application of its own.

A request goes to the model that its body or its query names, once that model is awake; requests to
the server as a whole are answered here. Everything else is the models' own routes, as of a server
of one model. Pure ASGI except for reading a body's `model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atom.entrypoints.http.errors import RETRY_AFTER_SECONDS, response_for
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import until_disconnect
from atom.entrypoints.ollama.routes import PREFIX as OLLAMA_PREFIX
from atom.entrypoints.ollama.routes import name_asked
from atom.entrypoints.openai.body import read_parsed
from atom.entrypoints.openai.generation import CLIENT_LEFT
from atom.entrypoints.openai.state import ServerState, not_served
from atom.entrypoints.responses.protocol import PATH as RESPONSES_PATH
from atom.entrypoints.responses.routes import COUNT_PATH
from atom.entrypoints.startup.startup_timeline import StartupTimeline
from atom.entrypoints.swap.model_turns import ModelTurns
from atom.errors import AtomError, RequestError
from atom.model_engine.front.engine_lifecycle import EngineState

_WHOLE = ("/v1/models", "/metrics", "/api/tags", "/api/ps")
# The same whichever model answers; of responses those that are stored.
_ANY = (
    f"{RESPONSES_PATH}/", "/docs", "/redoc", "/openapi.json", "/version", "/console/",
    "/static-offline-docs/", "/v1/files", "/v1/batches",
    "/api/version",
)  # fmt: skip
_OF_ITS_MODEL = frozenset({COUNT_PATH})  # below one of `_ANY`
_PROBES = frozenset({"/health", "/ready", "/ping", "/startup", "/live"})
_OWN_AFFAIR = frozenset({"/sleep", "/wake_up"})
_AWAKE = (EngineState.READY, EngineState.ASLEEP)
_LOST = (EngineState.DEAD, EngineState.STALLED)


class _Named(msgspec.Struct):
    """Reads of a body which model is asked for."""

    model: str | None = None


_NAMED = msgspec.json.Decoder(_Named)


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """A model behind the router. name: in ModelTurns; app: its routes."""

    name: str
    state: ServerState
    app: ASGIApp


class ModelRouter:
    """Sends requests to models. turns: once all of these have started."""

    def __init__(
        self, models: Sequence[RoutedModel], whole: ASGIApp, timeline: StartupTimeline
    ) -> None:
        """whole: answers for all models together; timeline: of their start."""
        self._models = models
        self._whole = whole
        self._timeline = timeline
        self.turns: ModelTurns | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        answer = self._app_of_all(path)
        if scope["type"] == "http" and answer is None:
            try:
                await self._route(Request(scope, receive), send)
            except AtomError as error:
                answer = response_for(error)
        if answer is not None:
            await answer(scope, receive, send)

    def _app_of_all(self, path: str) -> ASGIApp | None:
        """Return the application that answers a path for all models; None if a model answers it."""
        if path.startswith(_WHOLE):
            return self._whole
        if path in _PROBES:
            return self._health(path)
        if path == "/" or (path.startswith(_ANY) and path not in _OF_ITS_MODEL):
            return self._models[0].app
        return None

    @property
    def is_ready(self) -> bool:
        """Return whether every model is served, or wakes up on request."""
        return self._refusal() is None

    def _refusal(self) -> tuple[EngineState, str] | None:
        """Return the state of the first model that is not served, and why; None if all are."""
        for model in self._models:
            status = model.state.status
            if status.state not in _AWAKE:
                return status.state, f"{model.name}: {status.reason}"
        if self.turns is None:
            return EngineState.STARTING, "models start one after the other"
        return None

    def _health(self, path: str) -> Response:
        """Answer a probe: a model that sleeps is well, since a request wakes it up."""
        refusal = self._refusal()
        starting = refusal is not None and refusal[0] is EngineState.STARTING
        if path == "/live" and not (starting and self._timeline.is_overdue):
            states = (model.state.status.state for model in self._models)
            refusal = refusal if any(each in _LOST for each in states) else None
        elif path == "/startup" and starting and self._timeline.outlives_budget:
            refusal = None
        if refusal is None:
            return Response(to_json({"status": "ok"}), media_type="application/json")
        state, reason = refusal
        return Response(
            to_json({"status": state, "reason": reason}),
            503,
            {"retry-after": str(RETRY_AFTER_SECONDS)},
            media_type="application/json",
        )

    # ---- one model's --------------------------------------------------------------------------

    async def _route(self, http: Request, send: Send) -> None:
        """Let a model answer, once it is awake. Raises `AtomError` if none does."""
        if http.scope["path"] in _OWN_AFFAIR:
            raise RequestError(
                "models of this server sleep and wake up as they are asked for; pin those that are "
                "to stay awake in the file of --models",
                status=403,
            )
        turns = self._ready_turns()
        name, body = await self._asked(http)
        model = self._of_name(name)
        receive = http.receive if body is None else _Replayed(body, http.receive)
        async with AsyncExitStack() as stack:

            async def enter() -> bool:
                await stack.enter_async_context(turns.turn_of(model.name))
                return True

            # A client's end is seen once its body is read.
            taken = await (enter() if body is None else until_disconnect(http.receive, enter))
            answer = model.app if taken else CLIENT_LEFT
            await answer(http.scope, receive, send)

    def _ready_turns(self) -> ModelTurns:
        """Raises `RequestError` (503) while models start, and once the server ends."""
        refusal = self._refusal()
        if refusal is not None:
            state, reason = refusal
            raise RequestError(f"the server is {state}: {reason}; try again soon", status=503)
        assert self.turns is not None, "else there is a refusal"
        return self.turns

    async def _asked(self, http: Request) -> tuple[str | None, bytearray | None]:
        """Read the name of the model that is asked for, and the body, where that was read for
        it."""
        asked = parse_qs(http.scope["query_string"].decode("latin-1")).get("model")
        if asked or http.method != "POST":
            return (asked[0] if asked else None), None
        state = self._models[0].state
        most_bytes = max(model.state.most_body_bytes for model in self._models)
        with state.bodies.share(most_bytes=most_bytes) as share:
            turns = state.turns.of(state.clients.of(http.scope))
            of_ollama = http.scope["path"].startswith(OLLAMA_PREFIX)
            return await read_parsed(http, share, turns, _named_by_ollama if of_ollama else _named)

    def _of_name(self, name: str | None) -> RoutedModel:
        """Return the model of a name. Raises `RequestError` if there is none."""
        names = [each for model in self._models for each in model.state.all_names()]
        if name is None:
            raise RequestError(
                f"model: is required, since this server has several: {', '.join(names)}; a request "
                "without a body names it as ?model=NAME",
                param="model",
            )
        for model in self._models:
            if name in model.state.all_names():
                return model
        raise not_served(name, names)


def _named(body: bytearray) -> tuple[str | None, bytearray]:
    """Read the name of the model in a body. Raises `RequestError`."""
    try:
        return _NAMED.decode(body).model, body
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body's model cannot be read: {error}", param="model") from None


def _named_by_ollama(body: bytearray) -> tuple[str | None, bytearray]:
    """Read the name as Ollama's clients write it. Raises `RequestError`."""
    return name_asked(body), body


class _Replayed:
    """Replay a body that was read, and then pass further messages on."""

    def __init__(self, body: bytearray, receive: Receive) -> None:
        self._body: bytearray | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": bytes(body), "more_body": False}
