"""A stream of Ollama's API that its client cuts: the request ends and its blocks are freed."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from ollama import AsyncClient

from tests.support.engine_core.front_half import SERVED_NAME, build_test_config
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.random_search import examples
from tests.support.server.http_app import HttpRig, serve_model
from tests.support.waiting import eventually, within

LONG = 20_000  # tokens of an answer, of which a client reads few
ADDRESSES = ("/api/chat", "/api/generate")
WAYS = ("leaves the loop", "cancels the reading", "closes the socket", "ends its side")


def body_of(address: str) -> dict[str, Any]:
    body = {"model": SERVED_NAME, "options": {"num_predict": LONG, "temperature": 0}}
    if address == "/api/chat":
        return {**body, "messages": [{"role": "user", "content": "Count."}]}
    return {**body, "prompt": "Count.", "raw": True}


async def cut_by_the_client(rig: HttpRig, address: str, way: str, lines: int) -> None:
    """Read some lines with the official client, then leave."""
    client = AsyncClient(rig.url)
    ask: Any = client.chat if address == "/api/chat" else client.generate

    async def read(stops: bool) -> None:
        parts = await ask(stream=True, **body_of(address))
        left = lines
        async for _ in parts:
            left -= 1
            if left <= 0 and stops:
                await parts.aclose()
                return
            if left == 0:
                reading.set()

    reading = asyncio.Event()
    if way == "leaves the loop":
        return await read(stops=True)
    task = asyncio.create_task(read(stops=False))
    await within(reading.wait(), "the lines are read")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def cut_the_connection(rig: HttpRig, address: str, way: str, lines: int) -> None:
    """Read some lines of a connection, then close it, or only the side that asks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    body = json.dumps(body_of(address)).encode()
    head = f"POST {address} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    for _ in range(8 + 2 * lines):  # of the head, and of the chunks of a line each
        await within(reader.readline(), "a line of the answer")
    if way == "ends its side":
        writer.write_eof()
        await within(reader.read(), "the server ends the connection")
    writer.transport.abort()


@pytest.mark.parametrize("seed", range(examples(1, more=5)))
async def test_a_cut_stream_is_over_in_the_engine(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    model = make_tiny_checkpoint(tmp_path / "model", max_position_embeddings=2 * LONG)
    async with serve_model(build_test_config(model, num_kv_blocks=4000)) as rig:
        cuts = [(address, way) for address in ADDRESSES for way in WAYS]
        draw.shuffle(cuts)
        while cuts:
            together = [cuts.pop() for _ in range(min(len(cuts), draw.randint(1, 4)))]
            await asyncio.gather(
                *(
                    (cut_by_the_client if way in WAYS[:2] else cut_the_connection)(
                        rig, address, way, draw.randint(1, 6)
                    )
                    for address, way in together
                )
            )
            await eventually(lambda: rig.engine.open_requests == 0, "the requests end")
            await rig.assert_well()
        metrics = (await rig.client.get("/metrics")).text
    (line,) = [each for each in metrics.splitlines() if 'finished_reason="abort"' in each]
    assert float(line.rpartition(" ")[2]) == len(ADDRESSES) * len(WAYS)
