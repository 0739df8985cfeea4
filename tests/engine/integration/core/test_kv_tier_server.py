"""A server with a tier: ranks in processes of their own, usage, metrics, resets, sleep, weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from atom.config import EngineOptions, build_config
from atom.entrypoints.startup.startup_table import startup_rows
from tests.engine.sleep.test_weight_updates import KEY, loads_from
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

OLD, NEW = 1, 2  # seeds of the checkpoints
BLOCKS = 10  # of 16 tokens: a sequence takes most of them
LENGTH = 100
PROMPTS = [[3 + (7 * at + 13 * number) % 90 for at in range(LENGTH)] for number in range(4)]
WHOLE = LENGTH // 16 * 16  # tokens of a prompt that are cached
RANKS: dict[str, dict[str, int]] = {
    "one": {}, "tensor": {"tensor_parallel_size": 2}, "data": {"data_parallel_size": 2},
}  # fmt: skip

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {seed: make_tiny_checkpoint(folder / str(seed), seed=seed) for seed in (OLD, NEW)}


def serve(checkpoint: Path, **options: Any) -> Any:
    values = {
        "served_model_name": "tiny", "device": "cpu", "num_kv_blocks": BLOCKS,
        "max_model_len": 128, "enable_sleep_mode": True, "kv_offload_min_tokens": 16, **options,
    }  # fmt: skip
    engine = EngineOptions.of(model=str(checkpoint), **values)
    return serve_model(build_config(engine), api_key=KEY, access=loads_from(str(checkpoint.parent)))


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=RANKS)
async def rig(
    request: pytest.FixtureRequest, checkpoints: dict[int, Path]
) -> AsyncIterator[HttpRig]:
    async with serve(checkpoints[OLD], kv_offloading_size=0.04, **RANKS[request.param]) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        yield rig


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[OLD])
async def expected(checkpoints: dict[int, Path]) -> dict[int, list[list[int]]]:
    """The answers of servers without a tier, by their weights."""
    found = {}
    for seed, checkpoint in checkpoints.items():
        async with serve(checkpoint, num_kv_blocks=100) as plain:
            plain.client.headers["authorization"] = f"Bearer {KEY}"
            found[seed] = [(await answer(plain, prompt))[0] for prompt in PROMPTS]
    return found


async def answer(rig: HttpRig, prompt: list[int], **fields: Any) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt were cached."""
    found = await rig.post(
        "/v1/completions",
        **{"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0,
           "ignore_eos": True, "return_token_ids": True, **fields},
    )  # fmt: skip
    assert found.status_code == 200, found.text
    body = found.json()
    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return list(body["choices"][0]["token_ids"]), int(cached)


async def ask_all(rig: HttpRig, expected: list[list[int]]) -> list[int]:
    """Every prompt in turn; how many of their tokens were cached."""
    cached = []
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        told, count = await answer(rig, prompt)
        assert told == tokens
        cached.append(count)
    return cached


async def metric(rig: HttpRig, name: str) -> float:
    return (await rig.metrics()).get(name, 0.0)


async def test_prompts_return_from_the_tier(
    rig: HttpRig, expected: dict[int, list[list[int]]]
) -> None:
    for _ in range(4):  # with two copies each of them gets every prompt once at least
        cached = await ask_all(rig, expected[OLD])
    assert cached == [WHOLE] * len(PROMPTS)
    assert await metric(rig, "kv_offload_load_bytes_total") > 0
    assert await metric(rig, "kv_offload_hits_total") > 0
    assert 0 < await metric(rig, "kv_offload_usage_ratio") <= 1
    assert await metric(rig, "kv_offload_errors_total") == 0
    report = rig.engine.status.report
    assert report is not None
    assert "pages" in dict(startup_rows(report))["KV tier"]
    tier = report.host_tier
    assert tier is not None
    copies = rig.engine.config.parallel.data_parallel_size
    assert 0.9 * 0.04 * 2**30 / copies < tier.size_bytes <= 0.04 * 2**30 / copies


async def test_a_reset_empties_the_tier(rig: HttpRig, expected: dict[int, list[list[int]]]) -> None:
    await ask_all(rig, expected[OLD])
    assert (await rig.post("/reset_prefix_cache")).status_code == 200
    assert await ask_all(rig, expected[OLD]) == [0] * len(PROMPTS)


@pytest.mark.parametrize(("level", "kept"), [(1, True), (2, False)])
async def test_the_lighter_sleep_keeps_the_tier(
    rig: HttpRig, expected: dict[int, list[list[int]]], level: int, kept: bool
) -> None:
    for _ in range(4):
        await ask_all(rig, expected[OLD])
    assert (await rig.post(f"/sleep?level={level}")).status_code == 200
    assert (await rig.post("/wake_up")).status_code == 200
    cached = await ask_all(rig, expected[OLD])
    # The last prompt's blocks were on the device alone.
    assert cached[:3] == [WHOLE if kept else 0] * 3


async def test_other_weights_read_no_page_of_these(
    rig: HttpRig, expected: dict[int, list[list[int]]], checkpoints: dict[int, Path]
) -> None:
    await ask_all(rig, expected[OLD])
    for seed in (NEW, OLD):
        found = await rig.post("/update_weights", model_path=str(checkpoints[seed]))
        assert found.status_code == 200, found.text
        assert await ask_all(rig, expected[seed]) == [0] * len(PROMPTS)
    await rig.assert_well()
