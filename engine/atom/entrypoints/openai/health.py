"""/health, /ready, /startup, /live, /load, /version, /server_info: probes and server information.

/health, or /ready, or SageMaker's /ping, is about serving (a readiness probe): 200 only while
requests are taken, else 503 with the reason. /startup (a startup probe) also answers 200 when the
start has nearly spent its budget and still progresses; from then on /live ends a start that stalls.
/live is about the process (a liveness probe): 503 only if it cannot recover by itself, such as when
a rank of the engine has computed nothing for --stall-seconds. Load balancers may ask by HEAD.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

import atom
from atom.entrypoints.http.errors import RETRY_AFTER_SECONDS
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.kv_transfer.info import KVTransferInfo, transfer_facts, transfer_info
from atom.entrypoints.openai.openapi import answers_of
from atom.entrypoints.openai.responses import Health, Load, Version
from atom.entrypoints.openai.state import ServerState
from atom.errors import RequestError
from atom.kv_transfer_config.values import FLAG
from atom.model_engine.front.engine_lifecycle import EngineState


def health_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["status"])

    @router.post("/ping", include_in_schema=False)
    @router.get(
        "/ping", name="ping", summary="The same as /health, as SageMaker asks", **_probe(_SERVES)
    )
    @router.head("/ready", include_in_schema=False)
    @router.head("/health", include_in_schema=False)
    @router.get("/ready", name="ready", summary="The same as /health", **_probe(_SERVES))
    @router.get(
        "/health", summary="200 while requests are served, else 503 and why not", **_probe(_SERVES)
    )
    async def health() -> Response:
        status = state.status
        if status.state is EngineState.READY or state.holds_requests:
            return _json({"status": "ok"})
        if status.state is EngineState.STARTING:
            return _unavailable(status.state, status.reason, progress=state.timeline.progress())
        return _unavailable(status.state, status.reason)

    @router.head("/startup", include_in_schema=False)
    @router.get(
        "/startup",
        summary="200 when served, or when start-up moves beyond its budget",
        **_probe("For startup probes of Kubernetes."),
    )
    async def startup() -> Response:
        status = state.status
        starting = status.state is EngineState.STARTING
        started = status.state in (EngineState.READY, EngineState.ASLEEP)
        if started or (starting and state.timeline.outlives_budget):
            return _json({"status": "ok"})
        if starting:
            return _unavailable(status.state, status.reason, progress=state.timeline.progress())
        return _unavailable(status.state, status.reason)

    @router.head("/live", include_in_schema=False)
    @router.get(
        "/live",
        summary="200 unless the engine is gone, stalled, or its start-up stalls",
        **_probe("For liveness probes: 503 only when the process cannot recover by itself."),
    )
    async def live() -> Response:
        status = state.status
        if status.state in (EngineState.DEAD, EngineState.STALLED):
            return _unavailable(status.state, status.reason)
        if status.state is EngineState.STARTING and state.timeline.is_overdue:
            return _unavailable("stalled", f"{status.reason}, and its budget is spent")
        return _json({"status": "ok"})

    @router.get(
        "/load",
        summary="How many requests are open, running and waiting",
        description="For balancers in front of several servers.",
        responses=answers_of(Load, example=msgspec.to_builtins(Load(3, 2, 1))),
    )
    async def load() -> Response:
        state.started_engine()
        numbers = await state.numbers()
        assert numbers is not None
        ranks = [told.stats for told in numbers.stats_by_rank.values()]
        clients = numbers.clients.values()
        answer = Load(
            sum(client.waiting + client.running for client in clients),
            sum(rank.requests_running for rank in ranks),
            sum(rank.requests_waiting for rank in ranks),
        )
        return Response(to_json(answer), media_type="application/json")

    @router.get(
        "/version",
        summary="Version of this server",
        description="The package's version.",
        responses=answers_of(Version, example={"version": atom.__version__}),
    )
    async def version() -> Response:
        return _json({"version": atom.__version__})

    @router.get(
        "/server_info",
        summary="What start-up found out: blocks, tokens, bytes, backends",
        description="Facts that hold until the server ends; `ranks` has them for each rank. "
        "`adapters`, of --lora-modules-file, are as they are now.",
        responses=_FACTS,
    )
    async def server_info() -> Response:
        engine = state.started_engine()
        report = engine.status.report
        assert report is not None
        facts: dict[str, Any] = msgspec.structs.asdict(report)
        facts["served_model_name"] = engine.config.model.served_name
        facts["vocab_size"] = engine.config.model.facts.vocab_size
        facts["kv_tokens"] = report.kv_tokens
        facts |= transfer_facts(engine.config)
        facts.update(state.timeline.measured())
        if state.followed_loras is not None:
            facts["adapters"] = state.followed_loras.told()
        facts["total"] = {
            name: sum(getattr(rank, name) for rank in report.ranks)
            for name in ("num_blocks", "kv_tokens", "kv_cache_bytes", "weights_bytes")
        }
        return _json(facts)

    @router.get(
        "/kv_transfer_info",
        summary="Role and side channel of a server that exchanges KV pages",
        description="404 without --kv-transfer-config.",
        responses=answers_of(KVTransferInfo, example=_TRANSFER_EXAMPLE),
    )
    async def kv_transfer_info() -> Response:
        info = transfer_info(state.started_engine().config)
        if info is None:
            raise RequestError(
                f"this server exchanges no KV pages; start it with {FLAG}", status=404
            )
        return Response(to_json(info), media_type="application/json")

    return router


_TRANSFER_EXAMPLE = msgspec.to_builtins(KVTransferInfo(1, 1, "kv_producer", 5600))
_SERVES = "For readiness probes and load balancers; while it starts, with how far it is."
_FACTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Facts by name.",
        "content": {
            "application/json": {
                "schema": {"type": "object", "additionalProperties": True},
                "example": {"served_model_name": "MODEL", "kv_tokens": 1090880},
            }
        },
    }
}


def _probe(description: str) -> dict[str, Any]:
    """Describe a probe for the document."""
    return {
        "description": description,
        "responses": answers_of(Health, example={"status": "ok"}),
    }


def _json(content: dict[str, Any]) -> Response:
    return Response(to_json(content), media_type="application/json")


def _unavailable(status: str, reason: str, **more: Any) -> Response:
    return Response(
        to_json({"status": status, "reason": reason, **more}),
        503,
        {"retry-after": str(RETRY_AFTER_SECONDS)},
        media_type="application/json",
    )
