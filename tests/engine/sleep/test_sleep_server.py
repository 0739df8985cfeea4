"""POST /sleep and /wake_up: the device's memory is given back, and answers are the same behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from atom.config import EngineOptions, build_config
from atom.errors import ConfigError
from atom.lora_config import LoraConfig, LoraModule
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.processes import standing_still
from tests.support.server.http_app import HttpRig, serve_model
from tests.support.waiting import eventually

KEY = "key"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3-next", "qwen3_next")


def options_of(checkpoint: Path, **options: Any) -> EngineOptions:
    values = {"served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 200, **options}
    return EngineOptions.of(model=str(checkpoint), enable_sleep_mode=True, **values)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(checkpoint: Path) -> AsyncIterator[HttpRig]:
    """Of a model that keeps states beside keys."""
    async with serve_model(build_config(options_of(checkpoint)), api_key=KEY) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        yield rig


async def text(rig: HttpRig, model: str = "tiny", **fields: Any) -> str:
    answer = await rig.post(
        "/v1/completions",
        **{"model": model, "prompt": "Once upon a time " * 8, "max_tokens": 12, "temperature": 0,
           "ignore_eos": True, **fields},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


async def is_sleeping(rig: HttpRig) -> bool:
    answer = await rig.client.get("/is_sleeping")
    return bool(answer.json()["is_sleeping"])


@pytest.mark.parametrize("level", [1, 2])
async def test_a_server_answers_behind_its_sleep_as_before(rig: HttpRig, level: int) -> None:
    before = await text(rig)
    for _ in range(2):
        assert (await rig.client.post(f"/sleep?level={level}")).json() == {}
        assert await is_sleeping(rig)
        refused = await rig.post("/v1/completions", model="tiny", prompt="x")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "asleep at level" in refused.json()["error"]["message"]
        health = await rig.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "asleep")
        assert (await rig.client.get("/live")).status_code == 200
        assert (await rig.client.post("/sleep")).status_code == 200  # it is asleep
        assert (await rig.client.post("/wake_up")).status_code == 200
        assert not await is_sleeping(rig)
        assert await text(rig) == before
    await rig.assert_well()


@pytest.mark.parametrize("mode", ["wait", "abort"])
async def test_open_requests_end_before_the_server_sleeps(rig: HttpRig, mode: str) -> None:
    answer = asyncio.create_task(
        rig.post("/v1/completions", model="tiny", prompt="x", max_tokens=150, ignore_eos=True)
    )
    await eventually(lambda: rig.engine.open_requests == 1, "the request is open")
    assert (await rig.client.post(f"/sleep?mode={mode}")).status_code == 200
    assert (await answer).status_code == (200 if mode == "wait" else 503)
    assert (await rig.client.post("/wake_up")).status_code == 200
    await rig.assert_well()


async def test_open_requests_go_on_behind_a_sleep_that_keeps_them(rig: HttpRig) -> None:
    fields: dict[str, Any] = {"max_tokens": 150, "prompt": "Once upon a time "}
    calm = [await text(rig, **fields), await text(rig, **{**fields, "prompt": "x"})]
    for level in (1, 2):
        with standing_still("core_main"):  # the first may else end before the other one begins
            answers = [
                asyncio.create_task(text(rig, **fields)),
                asyncio.create_task(text(rig, **{**fields, "prompt": "x"})),
            ]
            await eventually(lambda: rig.engine.open_requests == 2, "both requests are open")
        assert (await rig.client.post(f"/sleep?level={level}&mode=keep")).status_code == 200
        assert await is_sleeping(rig)
        assert rig.engine.open_requests == 2
        assert (await rig.client.post("/wake_up")).status_code == 200
        assert [await answer for answer in answers] == calm
    await rig.assert_well()


async def test_a_client_may_leave_while_its_request_is_kept(rig: HttpRig) -> None:
    answer = asyncio.create_task(text(rig, max_tokens=150))
    await eventually(lambda: rig.engine.open_requests == 1, "the request is open")
    assert (await rig.client.post("/sleep?mode=keep")).status_code == 200
    answer.cancel()
    await eventually(lambda: rig.engine.open_requests == 0, "the request has gone")
    assert (await rig.client.post("/wake_up")).status_code == 200
    await rig.assert_well()


async def test_wrong_calls_are_told_and_change_nothing(rig: HttpRig) -> None:
    for asked in ("level=3", "level=x", "mode=later"):
        assert (await rig.client.post(f"/sleep?{asked}")).status_code == 400
    assert (await rig.client.post("/wake_up")).status_code == 200  # it is awake
    keyless = await rig.client.post("/sleep", headers={"authorization": ""})
    assert keyless.status_code == 401
    assert not await is_sleeping(rig)


async def test_a_model_that_cannot_be_read_again_sleeps_on(rig: HttpRig, checkpoint: Path) -> None:
    before = await text(rig)
    assert (await rig.client.post("/sleep?level=2")).status_code == 200
    weights, hidden = checkpoint / "model.safetensors", checkpoint / "hidden"
    weights.rename(hidden)
    failed = await rig.client.post("/wake_up")
    assert failed.status_code == 500, failed.text
    assert await is_sleeping(rig)
    hidden.rename(weights)
    assert (await rig.client.post("/wake_up")).status_code == 200
    assert await text(rig) == before


async def test_requests_are_held_over_a_sleep_of_ranks_with_adapters(
    checkpoint: Path, tmp_path: Path
) -> None:
    make_adapter(tmp_path / "adapter", checkpoint, rank=4, seed=1)
    adapter = LoraModule(name="sql", path=str(tmp_path / "adapter"))
    options = options_of(
        checkpoint, sleep_queue=True, tensor_parallel_size=2,
        lora=LoraConfig(modules=(adapter,), max_rank=4),
    )  # fmt: skip
    async with serve_model(build_config(options), api_key=KEY) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        before = [await text(rig), await text(rig, "sql")]
        assert before[0] != before[1]
        for level in (1, 2):
            assert (await rig.client.post(f"/sleep?level={level}")).status_code == 200
            assert (await rig.client.get("/health")).status_code == 200
            late = await rig.post("/v1/completions", model="tiny", prompt="x", timeout=0.05)
            assert late.status_code == 504
            held = [asyncio.create_task(text(rig, model)) for model in ("tiny", "sql")]
            await asyncio.sleep(0)
            assert not any(each.done() for each in held)
            assert (await rig.client.post("/wake_up")).status_code == 200
            assert await asyncio.gather(*held) == before
        await rig.assert_well()


async def test_a_server_that_nobody_asks_sleeps_until_a_request_comes(checkpoint: Path) -> None:
    async with serve_model(build_config(options_of(checkpoint, sleep_idle_seconds=0.01))) as rig:
        before = await text(rig)
        for wakes in (1, 2):
            await eventually(lambda: rig.engine.is_sleeping, "it falls asleep")
            assert (await rig.client.get("/health")).status_code == 200
            assert await asyncio.gather(*(text(rig) for _ in range(3))) == [before] * 3
            assert rig.engine.pauses.wakes_for_requests >= wakes
        await eventually(lambda: rig.engine.is_sleeping, "it falls asleep")
        metrics = (await rig.client.get("/metrics")).text
        assert 'atom:sleeping{model_name="tiny"} 1.0' in metrics
        woke = rig.engine.pauses.wakes_for_requests
        assert f'atom:model_wakes_total{{model_name="tiny"}} {woke:.1f}' in metrics
        await rig.engine.call_utility("reset_prefix_cache")  # wakes it up
        await rig.assert_well()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sleep_idle_seconds": 5, "enable_sleep_mode": False}, "give --enable-sleep-mode too"),
        ({"sleep_idle_seconds": 0}, "must be more than 0"),
        ({"sleep_queue": True, "enable_sleep_mode": False}, "give --enable-sleep-mode too"),
        ({"nnodes": 2, "tensor_parallel_size": 2}, "several nodes does not sleep"),
    ],
)
async def test_what_cannot_sleep_is_refused_at_the_start(
    checkpoint: Path, options: dict[str, Any], told: str
) -> None:
    values = {"device": "cpu", "enable_sleep_mode": True, **options}
    with pytest.raises(ConfigError, match=told):
        build_config(EngineOptions.of(model=str(checkpoint), **values))


async def test_a_server_that_may_not_sleep_says_so(checkpoint: Path) -> None:
    config = build_config(EngineOptions.of(model=str(checkpoint), device="cpu", num_kv_blocks=200))
    async with serve_model(config, api_key=KEY) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        answer = await rig.client.post("/sleep")
        assert answer.status_code == 403
        assert "--enable-sleep-mode" in answer.json()["error"]["message"]
