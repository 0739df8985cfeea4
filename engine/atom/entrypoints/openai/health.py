"""/health, /ready, /startup, /live, /load, /version, /server_info: what Kubernetes and others ask.

/health, or /ready, or SageMaker's /ping, is about serving (a readiness probe): 200 only while
requests are taken, else 503 with the reason. /startup (a startup probe) also answers 200 when the
start has nearly spent its budget and still moves; from then on it is for /live to end one that
stalls. /live is about the process (a liveness probe): 503 only when it cannot recover by itself,
such as when a rank of the engine has computed nothing for --stall-seconds. Load balancers may ask
by HEAD.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

import atom
from atom.entrypoints.http.errors import RETRY_AFTER_SECONDS
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.state import ServerState
from atom.model_engine.front.engine_lifecycle import EngineState


def health_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["status"])

    @router.post("/ping", include_in_schema=False)
    @router.get("/ping", summary="The same as /health, as SageMaker asks")
    @router.head("/ready", include_in_schema=False)
    @router.head("/health", include_in_schema=False)
    @router.get("/ready", summary="The same as /health")
    @router.get("/health", summary="200 while requests are served, else 503 and why not")
    async def health() -> Response:
        status = state.status
        if status.state is EngineState.READY:
            return _json({"status": "ok"})
        if status.state is EngineState.STARTING:
            return _unavailable(status.state, status.reason, progress=state.timeline.progress())
        return _unavailable(status.state, status.reason)

    @router.head("/startup", include_in_schema=False)
    @router.get("/startup", summary="200 when served, or when start-up moves beyond its budget")
    async def startup() -> Response:
        status = state.status
        starting = status.state is EngineState.STARTING
        if status.state is EngineState.READY or (starting and state.timeline.outlives_budget):
            return _json({"status": "ok"})
        return _unavailable(status.state, status.reason)

    @router.head("/live", include_in_schema=False)
    @router.get("/live", summary="200 unless the engine is gone, stalled, or its start-up stalls")
    async def live() -> Response:
        status = state.status
        if status.state in (EngineState.DEAD, EngineState.STALLED):
            return _unavailable(status.state, status.reason)
        if status.state is EngineState.STARTING and state.timeline.is_overdue:
            return _unavailable("stalled", f"{status.reason}, and its budget is spent")
        return _json({"status": "ok"})

    @router.get("/load", summary="How many requests are open, running and waiting")
    async def load() -> Response:
        state.started_engine()
        numbers = await state.numbers()
        assert numbers is not None
        ranks = [told.stats for told in numbers.stats_by_rank.values()]
        clients = numbers.clients.values()
        return _json(
            {
                "server_load": sum(client.waiting + client.running for client in clients),
                "requests_running": sum(rank.requests_running for rank in ranks),
                "requests_waiting": sum(rank.requests_waiting for rank in ranks),
            }
        )

    @router.get("/version", summary="Version of this server")
    async def version() -> Response:
        return _json({"version": atom.__version__})

    @router.get("/server_info", summary="What start-up found out: blocks, tokens, bytes, backends")
    async def server_info() -> Response:
        engine = state.started_engine()
        report = engine.status.report
        assert report is not None
        facts: dict[str, Any] = msgspec.structs.asdict(report)
        facts["served_model_name"] = engine.config.model.served_name
        facts["vocab_size"] = engine.config.model.vocab_size
        facts["kv_tokens"] = report.kv_tokens
        facts.update(state.timeline.measured())
        facts["total"] = {
            name: sum(getattr(rank, name) for rank in report.ranks)
            for name in ("num_blocks", "kv_tokens", "kv_cache_bytes", "weights_bytes")
        }
        return _json(facts)

    return router


def _json(content: dict[str, Any]) -> Response:
    return Response(to_json(content), media_type="application/json")


def _unavailable(status: str, reason: str, **more: Any) -> Response:
    return Response(
        to_json({"status": status, "reason": reason, **more}),
        503,
        {"retry-after": str(RETRY_AFTER_SECONDS)},
        media_type="application/json",
    )
