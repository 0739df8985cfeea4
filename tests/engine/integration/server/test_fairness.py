"""Over HTTP and a real engine: one client's crowd does not keep another waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from atom.client_label import client_label
from atom.config import EngineOptions, build_config
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model
from tests.support.server.server_process import server_process
from tests.support.waiting import HANG_SECONDS, eventually

CROWD = 300
SLOTS = 4
ANSWER_TOKENS = 96  # the crowd is there for longer than newcomers take, on a busy machine too


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3")


class Crowd:
    """One client's requests, all at once."""

    def __init__(self, client: httpx.AsyncClient, size: int = CROWD) -> None:
        self.client, self.size = client, size
        body = {
            "prompt": ["hello"] * 3, "n": size // 3, "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
        }  # fmt: skip
        self.answer = asyncio.create_task(
            client.post("/v1/completions", json=body, headers=bearer("crowd"))
        )

    async def left(self) -> int:
        """Requests of all clients that wait."""
        return int(await metric(self.client, "atom:requests_waiting"))

    async def waits(self) -> None:
        async def half_waits() -> bool:
            return await self.left() >= self.size // 2

        await eventually(half_waits, "half of the crowd waits")

    async def leave(self) -> None:
        """What is left of it is nobody's any more."""
        self.answer.cancel()
        await asyncio.gather(self.answer, return_exceptions=True)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def metric(server: httpx.AsyncClient, name: str, **labels: str) -> float:
    """Summed over the series that have these labels."""
    lines = (await server.get("/metrics")).text.splitlines()
    series = [line for line in lines if line.startswith(f"{name}{{")]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2]) for line in series if all(each in line for each in wanted)
    )


async def ask(client: httpx.AsyncClient, **fields: Any) -> None:
    body = {"prompt": "me", "max_tokens": 1, **fields}
    answer = await client.post("/v1/completions", json=body, headers=bearer("newcomer"))
    assert answer.status_code == 200, answer.text


@contextlib.asynccontextmanager
async def rig_of(checkpoint: Path, **options: Any) -> AsyncIterator[HttpRig]:
    settings = {
        "served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 200, "max_num_seqs": SLOTS,
        **options,
    }  # fmt: skip
    config = build_config(EngineOptions.of(model=str(checkpoint), **settings))
    async with serve_model(config) as rig:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=rig.url, limits=limits, timeout=HANG_SECONDS, verify=False
        ) as many:
            rig.client = many
            yield rig


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_blocks": 40, "max_num_seqs": 16},  # too few for all that run
        {"data_parallel_size": 2},
    ],
    ids=["default", "preemption", "two ranks"],
)
async def test_a_newcomer_is_next_behind_those_that_run(
    checkpoint: Path, options: dict[str, Any]
) -> None:
    guided = {"structured_outputs": {"regex": "[ab]{3}"}}
    async with rig_of(checkpoint, **options) as rig:
        await ask(rig.client, **guided)  # the compiler is started by the first
        crowd = Crowd(rig.client)
        await crowd.waits()
        await asyncio.gather(*(ask(rig.client, **each) for each in ({}, guided, {"priority": 9})))
        assert await crowd.left() > 0, "one was behind the crowd"
        await crowd.leave()
        await eventually(lambda: rig.engine.open_requests == 0, "the crowd has left")
        await rig.assert_well()


async def test_without_fairness_a_newcomer_is_last(checkpoint: Path) -> None:
    async with rig_of(checkpoint, fairness="off") as rig:
        crowd = Crowd(rig.client, 60)
        await crowd.waits()
        await ask(rig.client)
        assert await crowd.left() == 0
        assert (await crowd.answer).status_code == 200


async def test_several_processes_share_one_queue_and_tell_of_clients_together(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Clients are told apart by a gateway's header here."""
    flags = (
        "--api-server-count", "2", "--max-num-seqs", str(SLOTS), "--num-kv-blocks", "200",
        "--fairness-header", "X-Tenant",
    )  # fmt: skip
    with server_process(checkpoint, tmp_path / "log", *flags) as server:
        server.wait_ready()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        tenants = {
            name: httpx.AsyncClient(
                base_url=server.url, limits=limits, timeout=HANG_SECONDS, verify=False,
                headers={"x-tenant": name},
            )
            for name in ("crowd", "newcomer")
        }  # fmt: skip
        async with tenants["crowd"], tenants["newcomer"] as newcomer:
            crowd = Crowd(tenants["crowd"])
            await crowd.waits()
            label = client_label("header", "crowd")
            assert await metric(newcomer, "atom:client_requests_waiting", client=label) > 0
            await ask(newcomer)
            assert await crowd.left() > 0, "it was behind the crowd"
            await crowd.leave()
            for name, count in (("crowd", CROWD), ("newcomer", 1)):
                label = client_label("header", name)
                told = await metric(newcomer, "atom:client_requests_total", client=label)
                assert told == count
