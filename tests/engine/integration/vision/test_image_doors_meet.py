"""Every interface that takes pictures beside every feature of the engine: one answer, that of
transformers, or one refusal."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from atom.config_values import SleepLevel
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.entrypoints.stored_batches.service import BatchService
from atom.lora_config import LoraConfig, LoraModule
from atom.speculative_config import SpeculativeConfig
from tests.engine.integration.vision.test_image_chats import (
    NEW_TOKENS,
    drawn,
    greedy,
    write_checkpoint,
)
from tests.support.engine_core.front_half import SERVED_NAME, build_test_config
from tests.support.models.lora_adapter import adapt
from tests.support.pictures import file_of
from tests.support.server.http_app import HttpRig, serve_app, serve_model
from tests.support.server.seeing_model import image_part, write_seeing_model
from tests.support.waiting import eventually

CHAT, BATCHES = "/v1/chat/completions", "/v1/batches"
WORDS = "What is it?"
_TIER = {
    "kv_offloading_size": 0.01, "kv_offload_min_tokens": 0, "num_kv_blocks": 14,
    "max_model_len": 128,
}  # fmt: skip
# Options of the engine; "own" is a model whose name is an adapter's.
FEATURES: dict[str, dict[str, Any]] = {
    "a tier in files": {**_TIER, "kv_disk_size": 0.1},
    "a tier in the host's memory": _TIER,
    "adapters": {"lora": True},
    "sleep": {"enable_sleep_mode": True},
    "drafts": {"speculative": SpeculativeConfig(num_tokens=2, adaptive=False)},
    "short chunks": {"max_num_batched_tokens": 9},
    "no prefix cache": {"enable_prefix_caching": False},
}
Answer = Callable[[HttpRig, str, bytes], Awaitable[tuple[int, str]]]


# ---- interfaces: a status, and the text of an answer or an error ------------------------------


def body(model: str, file: bytes) -> dict[str, Any]:
    """Return a chat about a picture."""
    content = [image_part(file), {"type": "text", "text": WORDS}]
    asked = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    return {"model": model, **asked, "max_tokens": NEW_TOKENS, "ignore_eos": True}


async def by_chat(rig: HttpRig, model: str, file: bytes) -> tuple[int, str]:
    found = await rig.post(CHAT, **body(model, file))
    return found.status_code, _text_of(found.json())


async def by_messages(rig: HttpRig, model: str, file: bytes) -> tuple[int, str]:
    data = base64.b64encode(file).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": WORDS}]
    found = await rig.post(
        "/v1/messages", **{**body(model, file), "messages": [{"role": "user", "content": content}]}
    )
    answer = found.json()
    if found.status_code != 200:
        return found.status_code, _text_of(answer)
    return 200, "".join(each["text"] for each in answer["content"])


async def by_responses(rig: HttpRig, model: str, file: bytes) -> tuple[int, str]:
    url = image_part(file)["image_url"]["url"]
    content = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": WORDS}]
    found = await rig.post(
        "/v1/responses",
        model=model,
        input=[{"role": "user", "content": content}],
        temperature=0,
        max_output_tokens=NEW_TOKENS,
        ignore_eos=True,
    )
    answer = found.json()
    if found.status_code != 200:
        return found.status_code, _text_of(answer)
    return 200, "".join(
        part["text"] for item in answer["output"] for part in item.get("content") or ()
    )


async def by_ollama(rig: HttpRig, model: str, file: bytes) -> tuple[int, str]:
    image = base64.b64encode(file).decode()
    found = await rig.post(
        "/api/chat",
        model=model,
        messages=[{"role": "user", "content": WORDS, "images": [image]}],
        stream=False,
        options={"temperature": 0, "num_predict": NEW_TOKENS},
    )
    answer = found.json()
    if found.status_code != 200:
        return found.status_code, str(answer["error"])
    return 200, answer["message"]["content"]


async def by_batch(rig: HttpRig, model: str, file: bytes) -> tuple[int, str]:
    """A line of a stored batch."""
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body(model, file)}
    async with rig.openai_client() as client:
        sent = await client.files.create(
            file=("a.jsonl", json.dumps(line).encode()), purpose="batch"
        )
        batch = await client.batches.create(
            input_file_id=sent.id, endpoint=CHAT, completion_window="24h"
        )
        found: Any = None

        async def is_over() -> bool:
            nonlocal found
            found = await client.batches.retrieve(batch.id)
            return found.status in ("completed", "failed", "expired")

        await eventually(is_over, "the batch ends")
        assert found.status == "completed", found
        written = found.output_file_id or found.error_file_id
        answered = json.loads((await client.files.content(written)).text)["response"]
        return answered["status_code"], _text_of(answered["body"])


def _text_of(answer: dict[str, Any]) -> str:
    """Return the text of a chat's answer or error."""
    if "error" in answer:
        return str(answer["error"]["message"])
    return str(answer["choices"][0]["message"]["content"])


DOORS: dict[str, Answer] = {
    "chat": by_chat,
    "messages": by_messages,
    "responses": by_responses,
    "ollama": by_ollama,
    "batch": by_batch,
}

# ---- servers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder of a model, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("seeing")
    return folder, write_checkpoint(folder)


def adapted(folder: Path, model: Any) -> Any:
    """Write an adapter into the model's folder, and return transformers' model with it."""
    matrices = r".*language_model.*\.(q_proj|v_proj|down_proj)"
    return adapt(deepcopy(model), folder / "own", target_modules=matrices)


@contextlib.asynccontextmanager
async def serve(folder: Path, feature: str, files: Path) -> AsyncIterator[HttpRig]:
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "block_size": 16}
    options |= FEATURES[feature]
    if "kv_disk_size" in options:
        options["kv_disk_dir"] = str(files)
    if options.pop("lora", False):
        own = LoraModule(name="own", path=str(folder / "own"), folder=str(folder / "own"))
        options["lora"] = LoraConfig(modules=(own,))
    batches = BatchService(BatchOptions(folder=files / "batches"))
    try:
        async with serve_model(build_test_config(folder, **options), batches=batches) as rig:
            async with batches.running():
                yield rig
    finally:
        batches.close()


async def expected_of(rig: HttpRig, model: Any, name: str, picture: Image.Image) -> str:
    """Return the text of transformers' tokens after the prompt of a chat."""
    asked = body(name, file_of(picture))
    rendered = await rig.post("/tokenize", model=name, messages=asked["messages"])
    tokens = greedy(model, rendered.json()["tokens"], [picture])
    shown = await rig.post("/detokenize", tokens=tokens, skip_special_tokens=True)
    return str(shown.json()["prompt"])


@pytest.mark.parametrize(
    "feature",
    [
        each if at == 0 else pytest.param(each, marks=pytest.mark.whole)
        for at, each in enumerate(FEATURES)
    ],
)
async def test_every_interface_gives_the_answer_of_transformers(
    checkpoint: tuple[Path, Any], feature: str, tmp_path: Path
) -> None:
    folder, model = checkpoint
    picture, name = drawn(50, "red"), SERVED_NAME
    if feature == "adapters":
        name, model = "own", adapted(folder, model)
    async with serve(folder, feature, tmp_path) as rig:
        expected = await expected_of(rig, model, name, picture)
        for door in DOORS.values():
            assert await door(rig, name, file_of(picture)) == (200, expected), door.__name__
            if feature == "sleep":
                await rig.engine.sleep(SleepLevel.NO_WEIGHTS)
                await rig.engine.wake_up()
        assert (await rig.metrics())["mm_engine_bytes"] == 0


async def test_every_interface_of_a_reproducible_server_refuses_pictures(tmp_path: Path) -> None:
    """They are not proven to be reproducible; the same server answers texts."""
    config = build_test_config(write_seeing_model(tmp_path / "seeing"), reproducible=True)
    batches = BatchService(BatchOptions(folder=tmp_path / "batches"))
    try:
        async with serve_app(config, batches=batches) as rig, batches.running():
            file = file_of(drawn(50, "red"))
            for name, door in DOORS.items():
                status, words = await door(rig, SERVED_NAME, file)
                assert status == 400, (name, words)
                assert "image" in words, (name, words)
            assert (await rig.chat(max_tokens=1)).status_code == 200
    finally:
        batches.close()
