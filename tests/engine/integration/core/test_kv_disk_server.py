"""A server with files of its KV cache: they outlive it, and belong to the weights that made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.integration.core.test_kv_tier_server import (
    KEY,
    NEW,
    OLD,
    PROMPTS,
    answer,
    ask_all,
    checkpoints,
    serve,
)
from tests.support.waiting import eventually

__all__ = ["checkpoints"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def labelled(rig: object, name: str, label: str) -> float:
    """The sum of a metric's series that have a label."""
    lines = (await rig.client.get("/metrics")).text.splitlines()  # type: ignore[attr-defined]
    found = [line for line in lines if line.startswith(f"atom:{name}{{") and label in line]
    assert found, f"no {name} with {label}"
    return sum(float(line.rpartition(" ")[2]) for line in found)


async def test_files_outlive_a_server_and_belong_to_weights(
    checkpoints: dict[int, Path], tmp_path: Path
) -> None:
    expected: dict[int, list[list[int]]] = {}
    for seed, checkpoint in checkpoints.items():
        async with serve(checkpoint, num_kv_blocks=100) as plain:
            plain.client.headers["authorization"] = f"Bearer {KEY}"
            expected[seed] = [(await answer(plain, prompt))[0] for prompt in PROMPTS]
    options = {"kv_offloading_size": 0.04, "kv_disk_dir": str(tmp_path), "kv_disk_size": 1.0}

    def count() -> int:
        return len(list(tmp_path.rglob("*.page")))

    async with serve(checkpoints[OLD], **options) as first:
        first.client.headers["authorization"] = f"Bearer {KEY}"
        for _ in range(3):
            await ask_all(first, expected[OLD])
        await eventually(lambda: count() > 0, "pages are in files")
        assert await labelled(first, "kv_offload_disk_store_bytes_total", "") > 0
        assert 0 < await labelled(first, "kv_offload_usage_ratio", 'tier="disk"') <= 1
    written = count()
    async with serve(checkpoints[OLD], **options) as second:
        second.client.headers["authorization"] = f"Bearer {KEY}"
        assert sum(await ask_all(second, expected[OLD])) > 0, "nothing else could have them"
        assert await labelled(second, "kv_offload_hits_total", 'tier="disk"') > 0
        for seed in (NEW, OLD):
            found = await second.post("/update_weights", model_path=str(checkpoints[seed]))
            assert found.status_code == 200, found.text
            cached = await ask_all(second, expected[seed])
            assert seed == OLD or cached == [0] * len(PROMPTS), "files of other weights"
        assert count() >= written, "files of earlier weights stay"
        assert (await second.post("/reset_prefix_cache")).status_code == 200
        assert await ask_all(second, expected[OLD]) == [0] * len(PROMPTS)
        await second.assert_well()
