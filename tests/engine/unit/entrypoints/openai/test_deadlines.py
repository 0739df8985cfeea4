"""Deadlines of first tokens: refused by the prediction, or ended in the queue, and when to come
back."""

from __future__ import annotations

import asyncio
import dataclasses

import msgspec
import pytest

from atom.config import Config
from atom.model_engine.wire.outlook_body import Limit, OutlookBody, Predicted, StepTotals
from tests.support.engine_core.front_half import rank_stats
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually

BODY = {"prompt": "ab", "max_tokens": 1}


def bounded(config: Config, **options: object) -> Config:
    return dataclasses.replace(config, scheduler=dataclasses.replace(config.scheduler, **options))


def tell(rig: AppRig, ttft_seconds: float, *, each: float = 0.5, counted: int = 0) -> None:
    """Let the core predict."""
    predicted = Predicted(
        ttft_seconds, 0.01, each, counted, Limit.COMPUTE, step=0.01, row=0.0, token=1e-5
    )
    told = msgspec.structs.replace(
        rank_stats(0, 1), outlook=OutlookBody(StepTotals(steps=9, seconds=0.5), predicted)
    )
    rig.core.on_event(told)


async def predicted(rig: AppRig, seconds: float, **more: float) -> None:
    tell(rig, seconds, **more)  # type: ignore[arg-type]
    await eventually(lambda: bool(rig.engine.stats_by_rank), "numbers of the core")


@pytest.mark.parametrize("place", ["field", "header", "server"])
async def test_a_request_that_would_miss_its_deadline_is_told_when_to_come_back(
    config: Config, place: str
) -> None:
    options = {"deadline_ms": 500} if place == "server" else {}
    async with serve_app(bounded(config, **options)) as rig:
        await predicted(rig, 7.2)
        body = {**BODY, "deadline_ms": 500} if place == "field" else BODY
        headers = {"x-request-deadline-ms": "500"} if place == "header" else {}
        response = await rig.client.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "7"
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("deadline_exceeded", "deadline_ms")
        assert "7.20 s" in error["message"]
        assert rig.core.added == []
        assert (await rig.post("/v1/completions", **BODY, deadline_ms=8000)).status_code == 200


async def test_a_request_without_a_deadline_or_before_any_prediction_is_served(
    config: Config,
) -> None:
    async with serve_app(config) as rig:
        assert (await rig.post("/v1/completions", **BODY, deadline_ms=1)).status_code == 200
        await predicted(rig, 100.0)
        assert (await rig.post("/v1/completions", **BODY)).status_code == 200


async def test_requests_that_came_since_the_prediction_count(config: Config) -> None:
    async with serve_app(config, held=True) as rig:
        await predicted(rig, 0.1)
        asking = [asyncio.create_task(rig.chat(max_tokens=1)) for _ in range(3)]
        await eventually(lambda: len(rig.core.added) == 3, "requests in the engine")
        refused = await rig.post("/v1/completions", **BODY, deadline_ms=1000)
        assert refused.status_code == 429
        rig.core.release()
        assert [(await task).status_code for task in asking] == [200] * 3
        several = await rig.post("/v1/completions", prompt=["a"] * 9, deadline_ms=1000)
        assert several.status_code == 429


BODIES = {
    "/v1/completions": BODY,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 1,
    },
    "/inference/v1/generate": {"token_ids": [1, 2]},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_queued_request_ends_at_its_deadline(
    config: Config, path: str, stream: bool
) -> None:
    async with serve_app(bounded(config, deadline_action="queue"), held=True) as rig:
        await predicted(rig, 7.9, counted=1)
        body, headers = {**BODIES[path], "stream": stream}, {"x-request-deadline-ms": "20"}
        response = await rig.client.post(path, json=body, headers=headers)
        assert response.status_code == 503, response.text
        assert response.headers["retry-after"] == "8"
        assert "its deadline" in response.json()["error"]["message"]
        assert rig.core.aborted == [1]
        assert rig.engine.open_requests == 0


async def test_an_answer_that_has_begun_is_past_its_deadline(config: Config) -> None:
    async with serve_app(bounded(config, deadline_action="queue"), held=True) as rig:
        asking = asyncio.create_task(
            rig.post("/v1/completions", prompt="ab", max_tokens=2, deadline_ms=150)
        )
        await eventually(lambda: len(rig.core.added) == 1, "a request in the engine")
        rig.core.step()
        (opened,) = rig.engine._requests.by_number.values()
        await eventually(lambda: opened.timers[-1].when() < _now(), "the deadline")
        rig.core.release()
        assert (await asking).status_code == 200


def _now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("header", ["soon", "0", "-1", "nan", "1e12", ""])
async def test_a_header_without_a_time_is_refused(rig: AppRig, header: str) -> None:
    headers = {"x-request-deadline-ms": header}
    response = await rig.client.post("/v1/completions", json=BODY, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-deadline-ms"


async def test_the_prediction_is_in_the_metrics(config: Config) -> None:
    async with serve_app(config) as rig:
        await predicted(rig, 1.5)
        text = (await rig.client.get("/metrics")).text
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
        found = {name.partition("{")[0]: float(value) for name, value in lines.items()}
        assert found["atom:predicted_ttft_seconds"] == 1.5
        assert found["atom:predicted_itl_seconds"] == 0.01
        assert found["atom:step_seconds_total"] == 0.5
        limits = {name for name, value in lines.items() if "ttft_limit" in name and value == "1.0"}
        assert len(limits) == 1
        assert 'resource="compute"' in limits.pop()
        assert "atom:step_seconds_ratio" not in found, "no table of this machine was measured"
