"""A real engine whose tokenizer and model have not the same tokens serves all that both have."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from atom.config import EngineOptions, build_config
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import HttpRig, serve_model

EMBEDDED = 320  # more than the tokenizer's 294, as most published checkpoints have
PADDING = list(range(294, EMBEDDED))

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("padded") / "qwen3"
    return make_tiny_checkpoint(folder, extra={"vocab_size": EMBEDDED})


def config_of(folder: Path) -> Any:
    options = {"served_model_name": "tiny", "device": "cpu", "num_kv_blocks": 200}
    return build_config(EngineOptions.of(model=str(folder), **options))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def padded_rig(padded: Path) -> AsyncIterator[HttpRig]:
    async with serve_model(config_of(padded)) as rig:
        yield rig


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logprobs": 3, "echo": True},
        {"prompt_logprobs": 2},
        {"stop": ["x"], "n": 2},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"logit_bias": {"300": 5}, "min_tokens": 5},
    ],
    ids=str,
)
async def test_rows_that_pad_the_head_are_tokens_without_text(
    padded_rig: HttpRig, fields: dict[str, Any]
) -> None:
    body = {"prompt": [5, *PADDING, 7], "max_tokens": 6, "allowed_token_ids": PADDING, **fields}
    answer = await padded_rig.post("/v1/completions", **body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 6 * fields.get("n", 1)
    if "echo" not in fields:
        assert answer.json()["choices"][0]["text"] == ""
    events = await padded_rig.events("/v1/completions", **body)
    assert events[-1] == "[DONE]"
    assert not any("error" in event for event in events)
    await padded_rig.assert_well()


async def test_rows_that_pad_the_head_are_no_part_of_a_guided_answer(padded_rig: HttpRig) -> None:
    guided = {"regex": "[ab]{20}"}
    bias = {str(token): 100 for token in PADDING}
    answer = await padded_rig.post(
        "/v1/completions", prompt="x", max_tokens=40, structured_outputs=guided, logit_bias=bias
    )
    assert answer.json()["choices"][0]["text"].strip("ab") == ""
    assert len(answer.json()["choices"][0]["text"]) == 20
    padding = await padded_rig.post("/detokenize", tokens=PADDING)
    assert padding.json()["prompt"] == ""


async def test_a_token_without_an_embedding_costs_its_sender_a_400_and_others_nothing(
    padded: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(padded, tmp_path / "model"))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    fillers = [f"<|{number}|>" for number in PADDING]
    content["added_tokens"] += [
        {"id": 294 + at, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for at, text in enumerate([*fillers, "<|extra|>"])
    ]  # fmt: skip
    file.write_text(json.dumps(content))
    async with serve_model(config_of(folder)) as rig:
        long = asyncio.create_task(rig.events("/v1/completions", prompt="hi", max_tokens=200))
        for path, fields in {
            "/v1/completions": {"prompt": "hi <|extra|> there"},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "<|extra|>"}]},
            "/tokenize": {"prompt": "<|extra|>"},
        }.items():
            refused = await rig.post(path, **fields)
            assert refused.status_code == 400
            assert "<|extra|>" in refused.json()["error"]["message"]
            assert "id 320" in refused.json()["error"]["message"]
        embedded = await rig.post("/v1/completions", prompt="hi <|319|>", max_tokens=2)
        assert embedded.status_code == 200
        assert (await long)[-1] == "[DONE]"
        await rig.assert_well()
