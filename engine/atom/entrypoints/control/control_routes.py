"""Routes that change the server for everybody; access.CONTROL_PATHS names them, and keeps them shut
unless the server has an API key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atom.config_values import OpenRequestsMode, SleepLevel
from atom.entrypoints.http.errors import shortened
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.openapi import answers_of
from atom.entrypoints.openai.responses import Empty, Sleeping, Traces
from atom.entrypoints.openai.state import ServerState
from atom.errors import AtomError, EngineDeadError, RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.control import (
    Answer,
    Control,
    ResetPrefixCache,
    StartProfile,
    StopProfile,
)


def control_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["control"])

    @router.post(
        "/reset_prefix_cache",
        summary="Forget every cached prompt; running ones go on",
        description="Running requests go on with what they hold; later ones compute their prompts.",
        responses=answers_of(Empty, example={}),
    )
    async def reset_prefix_cache() -> Response:
        await state.serving_engine(None).call(ResetPrefixCache())
        return Response(to_json(Empty()), media_type="application/json")

    @router.post(
        "/start_profile",
        summary="Begin a torch profiler trace of every engine process",
        description="Where the server was started with --torch-profiler-dir.",
        responses=answers_of(Empty, example={}),
    )
    async def start_profile() -> Response:
        await _profile(state, StartProfile())
        return Response(to_json(Empty()), media_type="application/json")

    @router.post(
        "/stop_profile",
        summary="End the traces; where they were written",
        description="The answer names the files, one for each rank.",
        responses=answers_of(Traces, example={"traces": ["/traces/rank0.json"]}),
    )
    async def stop_profile() -> Response:
        paths = await _profile(state, StopProfile())
        return Response(to_json(Traces(paths)), media_type="application/json")

    @router.post(
        "/sleep",
        summary="Give the device's memory back until POST /wake_up",
        description="Needs --enable-sleep-mode. Answered once the memory is free, which waits for "
        "open requests unless mode says otherwise; requests that come are refused with 503, or "
        "held with --sleep-queue.",
        openapi_extra={"parameters": _SLEEP_PARAMETERS},
        responses=answers_of(Empty, example={}),
    )
    async def sleep(http: Request) -> Response:
        engine, level = pausing_engine(state), _chosen(http, "level", ("1", "2"))
        mode = OpenRequestsMode(_chosen(http, "mode", tuple(OpenRequestsMode)))
        await engine.sleep(SleepLevel(int(level)), mode)
        return Response(to_json(Empty()), media_type="application/json")

    @router.post(
        "/wake_up",
        summary="Take the device's memory again and serve",
        description="Answered once requests are served; a server that is awake stays so.",
        responses=answers_of(Empty, example={}),
    )
    async def wake_up() -> Response:
        await pausing_engine(state).wake_up()
        return Response(to_json(Empty()), media_type="application/json")

    @router.get(
        "/is_sleeping",
        summary="Whether the server sleeps",
        description="Since POST /sleep, and until POST /wake_up is answered.",
        responses=answers_of(Sleeping, example={"is_sleeping": False}),
    )
    async def is_sleeping() -> Response:
        answer = Sleeping(state.started_engine().is_sleeping)
        return Response(to_json(answer), media_type="application/json")

    return router


_SLEEP_PARAMETERS = [
    {
        "name": "level",
        "in": "query",
        "description": "1: weights wait in the host's memory; 2: they are read again.",
        "schema": {"type": "integer", "enum": [1, 2], "default": 1},
        "example": 1,
    },
    {
        "name": "mode",
        "in": "query",
        "description": "What becomes of open requests: they go on to their end, end with 503, or "
        "wait (keep) and go on after POST /wake_up.",
        "schema": {"type": "string", "enum": ["wait", "abort", "keep"], "default": "wait"},
        "example": "wait",
    },
]


def _chosen(http: Request, name: str, choices: tuple[str, ...]) -> str:
    """Read a query parameter; the first choice without it. Raises `RequestError` for another."""
    value = http.query_params.get(name, choices[0])
    if value not in choices:
        raise RequestError(
            f"{name} must be one of {', '.join(choices)}, got {shortened(value)!r}", param=name
        )
    return value


def pausing_engine(state: ServerState) -> AsyncLLMEngine:
    """Return the engine if it may be paused for everybody. Raises `RequestError`."""
    engine = state.started_engine()
    if not engine.config.sleep.enabled:
        raise RequestError(
            "this server does not pause; start it with --enable-sleep-mode", status=403
        )
    return engine


async def _profile(state: ServerState, call: Control[Answer]) -> list[Answer]:
    engine = state.serving_engine(None)
    if engine.config.execution.torch_profiler_dir is None:
        raise RequestError(
            "profiling is off in this server; start it with --torch-profiler-dir DIR", status=403
        )
    try:
        return await engine.call(call)
    except EngineDeadError:
        raise
    except AtomError as error:  # already begun, not begun, no room on the disk
        raise RequestError(str(error), status=409) from None
