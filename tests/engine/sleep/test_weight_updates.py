"""POST /update_weights: answers are those of a server that was started on the new checkpoint, and
no request is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from atom.config import EngineOptions, build_config
from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.control import Control, UpdateWeights
from atom.speculative_config import SpeculativeConfig
from tests.support.models.draft_checkpoints import add_mtp_layer
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.processes import standing_still
from tests.support.server.http_app import HttpRig, loads_from, serve_model
from tests.support.waiting import eventually

KEY = "key"
PROMPT = list(range(40, 80))
OLD, NEW = 1, 2  # seeds of the checkpoints

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Of a model that keeps states beside keys, and whose output head is its embedding."""
    folder = tmp_path_factory.mktemp("tiny")
    return {
        seed: make_tiny_checkpoint(
            folder / str(seed), "qwen3_next", tie_word_embeddings=True, seed=seed
        )
        for seed in (OLD, NEW)
    }


def serve(checkpoint: Path, **options: Any) -> Any:
    values = {"served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 200, **options}
    engine = EngineOptions.of(model=str(checkpoint), enable_sleep_mode=True, **values)
    places = loads_from(str(checkpoint.parent.parent))
    return serve_model(build_config(engine), api_key=KEY, access=places)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(checkpoints: dict[int, Path]) -> AsyncIterator[HttpRig]:
    async with serve(checkpoints[OLD]) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        yield rig


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def started_on_new(checkpoints: dict[int, Path]) -> AsyncIterator[HttpRig]:
    """The reference: a server that has never had other weights."""
    async with serve(checkpoints[NEW]) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        yield rig


def asked(prompt: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **fields}  # fmt: skip


async def answer(
    rig: HttpRig, prompt: list[int] = PROMPT, max_tokens: int = 12, **fields: Any
) -> dict[str, Any]:
    found = await rig.post("/v1/completions", **asked(prompt, max_tokens, **fields))
    assert found.status_code == 200, found.text
    return dict(found.json())


async def tokens(rig: HttpRig, *args: Any, **fields: Any) -> list[int]:
    return list((await answer(rig, *args, **fields))["choices"][0]["token_ids"])


async def update(rig: HttpRig, checkpoint: Path, **fields: Any) -> str:
    found = await rig.post("/update_weights", model_path=str(checkpoint), **fields)
    assert found.status_code == 200, found.text
    return str(found.json()["weight_version"])


async def update_before_it_ends(rig: HttpRig, checkpoint: Path, **fields: Any) -> None:
    """Update while a request is open, which computes nothing while the checkpoint is found."""
    with standing_still("core_main"):
        change = asyncio.create_task(update(rig, checkpoint, **fields))
        await eventually(lambda: bool(rig.engine._calls._answers), "the engine is asked")
    await change


async def version_shown(rig: HttpRig) -> str:
    card, *_ = (await rig.client.get("/v1/models")).json()["data"]
    metrics = (await rig.client.get("/metrics")).text
    shown = str(card["weight_version"])
    assert f'atom:weights_info{{model_name="tiny",weight_version="{shown}"}} 1.0' in metrics
    return shown


async def test_answers_are_those_of_a_server_on_the_new_weights(
    rig: HttpRig, started_on_new: HttpRig, checkpoints: dict[int, Path]
) -> None:
    await update(rig, checkpoints[OLD])
    old, expected = await tokens(rig), await tokens(started_on_new)
    assert old != expected
    version = await update(rig, checkpoints[NEW])
    found = await answer(rig)
    assert found["choices"][0]["token_ids"] == expected
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert found["system_fingerprint"] == version == await version_shown(rig)
    assert version == await version_shown(started_on_new)
    chat = await rig.chat(max_tokens=1)
    assert chat.json()["system_fingerprint"] == version
    for body in ({"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hi"}):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        *events, _ = await rig.events(path, max_tokens=2, **body)
        assert {event["system_fingerprint"] for event in events} == {version}
    assert await update(rig, checkpoints[OLD], weight_version="step-7") == "step-7"
    assert await version_shown(rig) == "step-7"
    assert await tokens(rig) == old
    await rig.assert_well()


async def test_streams_go_on_with_the_new_weights(
    rig: HttpRig, started_on_new: HttpRig, checkpoints: dict[int, Path]
) -> None:
    """What follows the update is what the new weights say of all that stands before it."""
    await update(rig, checkpoints[OLD])
    whole = await tokens(rig, max_tokens=300)
    stream = asyncio.create_task(tokens(rig, max_tokens=300))
    await eventually(lambda: rig.engine.open_requests == 1, "the request is open")
    await update_before_it_ends(rig, checkpoints[NEW], mode="keep")
    assert not stream.done()
    found = await stream
    assert len(found) == 300
    same = next(at for at in range(300) if found[at] != whole[at])
    for at in range(same, -1, -1):  # the new weights may have agreed with the old for a while
        after = await tokens(started_on_new, PROMPT + found[:at], 300 - at)
        if after == found[at:]:
            break
    else:
        pytest.fail("no part of the answer is what the new weights say")
    assert after == found[at:]
    await rig.assert_well()


async def test_open_requests_end_first_and_those_that_come_wait(
    rig: HttpRig, started_on_new: HttpRig, checkpoints: dict[int, Path]
) -> None:
    await update(rig, checkpoints[OLD], weight_version="old")
    whole = await tokens(rig, max_tokens=200)
    running = asyncio.create_task(answer(rig, max_tokens=200))
    await eventually(lambda: rig.engine.open_requests == 1, "the request is open")
    change = asyncio.create_task(update(rig, checkpoints[NEW], weight_version="new"))
    await eventually(lambda: bool(rig.engine._lifecycle.held_because), "requests are held")
    with standing_still("core_main"):
        held = asyncio.create_task(answer(rig))
        late = await rig.post("/v1/completions", **asked(PROMPT, 2, timeout=0.001))
    assert late.status_code == 504
    assert "weights change" in late.json()["error"]["message"]
    assert (await rig.client.get("/health")).status_code == 200
    first, second = await running, await held
    assert (first["choices"][0]["token_ids"], first["system_fingerprint"]) == (whole, "old")
    assert second["choices"][0]["token_ids"] == await tokens(started_on_new)
    assert second["system_fingerprint"] == await change == "new"


async def test_open_requests_end_at_once_where_they_are_aborted(
    rig: HttpRig, checkpoints: dict[int, Path]
) -> None:
    running = asyncio.create_task(rig.post("/v1/completions", **asked(PROMPT, 300)))
    await eventually(lambda: rig.engine.open_requests == 1, "the request is open")
    await update_before_it_ends(rig, checkpoints[OLD], mode="abort")
    assert (await running).status_code == 503
    await rig.assert_well()


@pytest.mark.parametrize("level", [1, 2])
async def test_a_server_that_sleeps_wakes_up_with_the_new_weights(
    rig: HttpRig, started_on_new: HttpRig, checkpoints: dict[int, Path], level: int
) -> None:
    await update(rig, checkpoints[OLD])
    assert (await rig.client.post(f"/sleep?level={level}")).status_code == 200
    await update(rig, checkpoints[NEW])
    assert (await rig.client.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await rig.client.post("/wake_up")).status_code == 200
    assert await tokens(rig) == await tokens(started_on_new)


Change = Callable[[dict[str, torch.Tensor]], object]
LAYER = "model.layers.0.mlp.gate.weight"


def no_numbers(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER].fill_(float("nan"))


WRONG_WEIGHTS: list[tuple[Change, str]] = [
    (lambda weights: weights.pop(LAYER), f"first {LAYER}"),
    (lambda weights: weights.update(extra=torch.ones(2)), "first extra"),
    (lambda weights: weights.update({LAYER: weights[LAYER][1:]}), "has shape"),
    (lambda weights: weights.update({LAYER: weights[LAYER].to(torch.int8)}), "holds int8"),
    (no_numbers, "every value that was looked at is NaN"),
]


@pytest.mark.parametrize(("change", "told"), WRONG_WEIGHTS)
async def test_weights_that_do_not_fit_are_refused_and_nothing_changes(
    rig: HttpRig, checkpoints: dict[int, Path], tmp_path: Path, change: Change, told: str
) -> None:
    wrong = Path(shutil.copytree(checkpoints[NEW], tmp_path / "wrong"))
    weights = load_file(wrong / "model.safetensors")
    change(weights)
    save_file({name: each.contiguous() for name, each in weights.items()},
              wrong / "model.safetensors")  # fmt: skip
    await check_refused(rig, str(wrong), told)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("rms_norm_eps", 0.5, "rms_norm_eps is 0.5 there"),
        ("num_hidden_layers", 3, "num_hidden_layers is 3 there and 2 here"),
        ("quantization_config", {"quant_method": "fp8"}, "quantization_config is"),
        ("eos_token_id", 3, "end tokens are"),
    ],
)
async def test_another_models_configuration_is_refused(
    rig: HttpRig, checkpoints: dict[int, Path], tmp_path: Path, field: str, value: Any, told: str
) -> None:
    wrong = Path(shutil.copytree(checkpoints[NEW], tmp_path / "wrong"))
    for name in ("config.json", "generation_config.json"):
        config = json.loads((wrong / name).read_text())
        if name == "config.json" or field in config:
            (wrong / name).write_text(json.dumps(config | {field: value}))
    await check_refused(rig, str(wrong), told)


async def test_files_that_are_none_are_refused(
    rig: HttpRig, checkpoints: dict[int, Path], tmp_path: Path
) -> None:
    cut = Path(shutil.copytree(checkpoints[NEW], tmp_path / "cut"))
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    await check_refused(rig, str(cut), "is truncated")
    await check_refused(rig, str(tmp_path / "none"), "no such folder")


async def test_places_that_no_flag_names_are_refused_whether_they_are_there_or_not(
    rig: HttpRig,
) -> None:
    told = set()
    for path in ("/", "/no/such/folder", "org/name", "s3://bucket/weights"):
        refused = await rig.post("/update_weights", model_path=path)
        assert refused.status_code == 403
        told.add(refused.json()["error"]["message"].replace(path, "PATH"))
    assert len(told) == 1
    assert "--allowed-weights-paths" in told.pop()


async def check_refused(rig: HttpRig, path: str, told: str) -> None:
    before, version = await tokens(rig), await version_shown(rig)
    refused = await rig.post("/update_weights", model_path=path)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "model_path"
    assert told in refused.json()["error"]["message"]
    assert (await tokens(rig), await version_shown(rig)) == (before, version)


async def test_wrong_calls_are_told(rig: HttpRig, checkpoints: dict[int, Path]) -> None:
    path = str(checkpoints[NEW])
    for body in ({}, {"model_path": path, "mode": "now"}, {"model_path": path, "model": "x"}):
        assert (await rig.post("/update_weights", **body)).status_code == 400
    bare = {"authorization": ""}
    keyless = await rig.client.post("/update_weights", json={"model_path": path}, headers=bare)
    assert keyless.status_code == 401


async def test_ranks_with_adapters_take_the_new_weights(
    started_on_new: HttpRig, checkpoints: dict[int, Path], tmp_path: Path
) -> None:
    make_adapter(tmp_path / "adapter", checkpoints[OLD], rank=4, seed=1)
    module = LoraModule(name="sql", path=str(tmp_path / "adapter"))
    lora = LoraConfig(modules=(module,), max_rank=4)
    async with serve(checkpoints[OLD], tensor_parallel_size=2, lora=lora) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        before = [await tokens(rig), await tokens(rig, model="sql")]
        await update(rig, checkpoints[NEW], mode="keep")
        assert await tokens(rig) == await tokens(started_on_new)
        assert await tokens(rig, model="sql") not in (before[1], await tokens(started_on_new))
        await update(rig, checkpoints[OLD], mode="keep")
        assert [await tokens(rig), await tokens(rig, model="sql")] == before
        await rig.assert_well()


@pytest.mark.slow
async def test_every_copy_takes_the_new_weights_and_one_that_cannot_ends_the_server(
    started_on_new: HttpRig, checkpoints: dict[int, Path], tmp_path: Path
) -> None:
    lost = Path(shutil.copytree(checkpoints[NEW], tmp_path / "lost"))
    async with serve(checkpoints[OLD], data_parallel_size=2) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        await update(rig, checkpoints[NEW])
        found = await asyncio.gather(*(tokens(rig) for _ in range(4)))
        assert found == [await tokens(started_on_new)] * 4
        call = rig.engine.pauses._call

        async def lose_the_file_behind_the_checks(control: Control[Any]) -> Any:
            if isinstance(control, UpdateWeights):
                (lost / "model.safetensors").unlink()
            return await call(control)

        rig.engine.pauses._call = lose_the_file_behind_the_checks
        failed = await rig.post("/update_weights", model_path=str(lost))
        assert failed.status_code in (500, 503), failed.text
        reason = await rig.engine.wait_dead()
        assert "could not be taken, and those before are gone" in reason
        assert "model.safetensors: missing" in reason


@pytest.mark.slow
async def test_weights_that_are_lost_while_requests_end_change_no_copy(
    checkpoints: dict[int, Path], tmp_path: Path
) -> None:
    lost = Path(shutil.copytree(checkpoints[NEW], tmp_path / "lost"))
    async with serve(checkpoints[OLD], data_parallel_size=2) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        before = await tokens(rig)
        running = asyncio.create_task(tokens(rig, max_tokens=300))
        await eventually(lambda: rig.engine.open_requests == 1, "the request is open")
        change = asyncio.create_task(rig.post("/update_weights", model_path=str(lost)))
        await eventually(lambda: bool(rig.engine._lifecycle.held_because), "requests are held")
        (lost / "model.safetensors").unlink()  # behind the first check
        assert len(await running) == 300
        refused = await change
        assert refused.status_code == 400, refused.text
        assert "model.safetensors: missing" in refused.text
        assert await asyncio.gather(*(tokens(rig) for _ in range(4))) == [before] * 4
        await rig.assert_well()


@pytest.mark.slow
async def test_layers_that_draft_take_the_new_weights(tmp_path: Path) -> None:
    folders = []
    for seed in (OLD, NEW):
        folder = make_tiny_checkpoint(tmp_path / str(seed), "glm4_moe", layers=2, seed=seed)
        add_mtp_layer(folder)
        folders.append(folder)
    asked = SpeculativeConfig(method="mtp", num_tokens=2, adaptive=False)
    async with serve(folders[0], speculative=asked) as rig:
        rig.client.headers["authorization"] = f"Bearer {KEY}"
        before = await tokens(rig)
        await update(rig, folders[1], mode="keep")
        after = await tokens(rig)
        assert after != before
        await update(rig, folders[0])
        assert await tokens(rig) == before
