"""Engines over real HTTP: what they answer, and answers that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atom_operator.cluster.engine_http import HttpEngines
from atom_operator.domain import (
    DraftCounts,
    EngineHealth,
    EngineLoad,
    EngineMetrics,
    SleepCounts,
    StartupTimes,
)

INFO = {
    "weights_bytes": 1000,
    "kv_bytes_per_token": 64,
    "num_blocks": 10,
    "kv_tokens": 160,
    "max_model_len": 80,
    "limited_by": "memory",
    "concurrency": [
        {"context_tokens": 16, "sequences": 10},
        {"context_tokens": 80, "sequences": 2},
    ],
    "backends": {"attention": "torch_ref"},
}


@asynccontextmanager
async def engine(answer: bytes) -> AsyncIterator[HttpEngines]:
    """A server that sends `answer` to whoever connects, and a client for its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engines = HttpEngines(port=server.sockets[0].getsockname()[1])
    try:
        yield engines
    finally:
        await engines.close()
        server.close()
        await server.wait_closed()


def http(body: Any, status: str = "200 OK") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    return head.encode() + data


async def test_the_capacity_of_a_started_engine() -> None:
    async with engine(http(INFO)) as engines:
        capacity = await engines.capacity("127.0.0.1")
    assert capacity is not None
    assert (capacity.kv_tokens, capacity.num_blocks, capacity.max_sequences) == (160, 10, 2)


async def test_the_capacity_of_all_copies_in_a_pod() -> None:
    ranks = [{"num_blocks": 10, "kv_tokens": 160}, {"num_blocks": 9, "kv_tokens": 144}]
    total = {"num_blocks": 19, "kv_tokens": 304}
    async with engine(http({**INFO, "ranks": ranks, "total": total})) as engines:
        capacity = await engines.capacity("127.0.0.1")
    assert capacity is not None
    assert (capacity.kv_tokens, capacity.num_blocks, capacity.max_sequences) == (304, 19, 4)
    assert [row.sequences for row in capacity.concurrency] == [20, 4]
    assert capacity.weights_bytes == 1000, "of one device"


@pytest.mark.parametrize(
    ("startup", "known"),
    [
        ((12.5, 10.0, 1000), True),
        ((None, None, 1000), False),
        ((12.5, 10.0, 0), False),
    ],
    ids=["measured", "still unknown", "no files"],
)
async def test_what_the_start_took(startup: tuple[Any, Any, int], known: bool) -> None:
    names = ("startup_seconds", "weights_loading_seconds", "checkpoint_bytes")
    info = {**INFO, **dict(zip(names, startup, strict=True)), "peak_bytes": 1500}
    async with engine(http(info)) as engines:
        capacity = await engines.capacity("127.0.0.1")
    assert capacity is not None
    assert capacity.device.reserve_bytes == 500
    assert (capacity.startup == StartupTimes(*startup)) is known


COUNTED = """\
# TYPE atom:spec_decode_num_drafts counter
atom:spec_decode_num_drafts_total{model_name="m"} 10.0
atom:spec_decode_num_drafts_total{model_name="other"} 2.0
atom:spec_decode_num_draft_tokens_total{model_name="m"} 1.2e+03
atom:spec_decode_num_accepted_tokens_total{model_name="m"} 7.0
atom:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 5.0
"""


async def test_what_became_of_drafts() -> None:
    async with engine(http(COUNTED.encode())) as engines:
        assert await engines.metrics("127.0.0.1") == EngineMetrics(DraftCounts(12, 1200, 7))


@pytest.mark.parametrize(
    "metrics",
    [COUNTED.replace("draft_tokens", "tokens"), COUNTED.replace("7.0", "1.2.3"), "\xff"],
    ids=["one is missing", "no number", "no text"],
)
async def test_drafts_that_are_not_counted_are_unknown(metrics: str) -> None:
    async with engine(http(metrics.encode("latin-1"))) as engines:
        assert await engines.metrics("127.0.0.1") == EngineMetrics()


LOADED = """\
atom:requests_running{model_name="m"} 3.0
atom:requests_waiting{model_name="m"} 2.0
atom:kv_cache_blocks_indexed{model_name="m"} 1.5e+03
atom:cache_config_info{block_size="16",model_name="m",num_gpu_blocks="2000"} 1.0
"""


async def test_what_an_engine_has_to_do_and_has_cached() -> None:
    async with engine(http(LOADED.encode())) as engines:
        assert await engines.metrics("127.0.0.1") == EngineMetrics(load=EngineLoad(5, 24_000))


async def test_who_sleeps_and_how_often_a_request_woke_it_up() -> None:
    told = 'atom:sleeping{model_name="m"} 1.0\natom:model_wakes_total{model_name="m"} 4.0\n'
    async with engine(http(told.encode())) as engines:
        assert await engines.metrics("127.0.0.1") == EngineMetrics(sleep=SleepCounts(1, 4))
    async with engine(http(told.replace("wakes", "w").encode())) as engines:
        assert await engines.metrics("127.0.0.1") == EngineMetrics()


async def test_one_answer_tells_of_drafts_and_load() -> None:
    async with engine(http((COUNTED + LOADED).encode())) as engines:
        found = await engines.metrics("127.0.0.1")
    assert found == EngineMetrics(DraftCounts(12, 1200, 7), EngineLoad(5, 24_000))


@pytest.mark.parametrize(
    "metrics",
    [
        LOADED.replace("requests_waiting", "waiting"),
        LOADED.replace("block_size", "size"),
        LOADED.replace("3.0", "1.2.3"),
        "\xff",
    ],
    ids=["one is missing", "no size of blocks", "no number", "no text"],
)
async def test_a_load_that_is_not_told_is_unknown(metrics: str) -> None:
    async with engine(http(metrics.encode("latin-1"))) as engines:
        assert await engines.metrics("127.0.0.1") == EngineMetrics()


@pytest.mark.parametrize(
    "progress",
    [
        [1],
        {"phase": "loading weights"},
        {"phase": "x", "fraction": "half", "seconds_without_progress": 1, "stalled": False},
        {"phase": "x", "fraction": 10**400, "seconds_without_progress": 1, "stalled": False},
    ],
    ids=["no object", "too little", "no number", "no float"],
)
async def test_progress_that_makes_no_sense_is_left_out(progress: Any) -> None:
    answer = {"status": "starting", "reason": "r", "progress": progress}
    async with engine(http(answer, "503 Service Unavailable")) as engines:
        assert await engines.health("127.0.0.1") == EngineHealth("starting", "r")


async def test_the_phase_of_a_starting_engine() -> None:
    answer = {"status": "starting", "reason": "loading weights 40%"}
    async with engine(http(answer, "503 Service Unavailable")) as engines:
        assert await engines.health("127.0.0.1") == EngineHealth("starting", "loading weights 40%")


@pytest.mark.parametrize(
    "answer",
    [
        http({"error": {"message": "the server is starting"}}, "503 Service Unavailable"),
        http({**INFO, "kv_tokens": "many"}),
        http(b"<html>"),
        http([1]),
        http(b" " * 300_000),
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
    ids=["starting", "no number", "no json", "no object", "too long", "no http", "nothing"],
)
async def test_anything_else_is_no_answer(answer: bytes) -> None:
    async with engine(answer) as engines:
        assert await engines.capacity("127.0.0.1") is None


async def test_a_closed_port_is_no_answer() -> None:
    async with engine(b"") as engines:
        pass
    fresh = HttpEngines(port=engines._port)
    assert await fresh.health("127.0.0.1") is None
    await fresh.close()
