"""What /render gives goes to /inference/v1/generate as it is, and says what the chat would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atom.config import Config
from atom.tokenizer import Tokenizer
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app

TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model_folder(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> Config:
    return build_test_config(folder)


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config) as rig:
        yield rig


async def test_a_rendered_chat_is_generated_as_the_chat_is_answered(
    rig: AppRig, folder: Path
) -> None:
    asked = {"temperature": 0.5, "seed": 3, "max_tokens": 5, "stop_token_ids": [250]}
    messages = [{"role": "user", "content": "hi"}]
    rendered = (await rig.post("/v1/chat/completions/render", messages=messages, **asked)).json()
    assert rig.core.added == [], "nothing was generated"
    assert rendered["text"] == "<hi>"
    assert rendered["token_ids"] == Tokenizer(folder).encode("<hi>", add_special_tokens=False)
    assert rendered["sampling_params"] == asked
    answer = (await rig.post("/inference/v1/generate", **rendered)).json()
    (whole,) = answer["choices"]
    await rig.chat("hi", **asked)
    generated, chatted = rig.core.added
    assert generated.prompt_token_ids == chatted.prompt_token_ids
    for name in ("temperature", "seed", "max_tokens", "stop_token_ids"):
        assert getattr(generated.params, name) == getattr(chatted.params, name)
    assert whole["finish_reason"] == "length"
    assert whole["token_ids"] == (rendered["token_ids"] * 2)[:5]
    assert answer["request_id"] == rendered["request_id"]
    assert answer["usage"]["completion_tokens"] == 5


async def test_a_stream_brings_the_same_tokens_and_the_usage(rig: AppRig) -> None:
    fields = {"token_ids": [40, 41, 42], "sampling_params": {"max_tokens": 7}}
    (whole,) = (await rig.post("/inference/v1/generate", **fields)).json()["choices"]
    events = await rig.events(
        "/inference/v1/generate", **fields, stream_options={"include_usage": True}
    )
    assert events.pop() == "[DONE]"
    assert events.pop()["usage"]["completion_tokens"] == 7
    tokens = [token for event in events for each in event["choices"] for token in each["token_ids"]]
    assert tokens == whole["token_ids"] == [40, 41, 42, 40, 41, 42, 40]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_each_prompt_of_a_completion_is_rendered(rig: AppRig) -> None:
    found = (await rig.post("/v1/completions/render", prompt=["ab", "c"], n=2)).json()
    assert [each["text"] for each in found] == ["ab", "c"]
    assert found[0]["sampling_params"] == {"n": 2, "max_tokens": 16}
    (only,) = (await rig.post("/v1/completions/render", prompt=found[0]["token_ids"])).json()
    assert only["text"] == "ab"
    choices = (await rig.post("/inference/v1/generate", **found[0])).json()["choices"]
    assert [each["index"] for each in choices] == [0, 1]


async def test_what_a_completion_refuses_is_refused(rig: AppRig) -> None:
    for params, word in (({"best_of": 3}, "best_of"), ({"temperature": -1}, "temperature")):
        refused = await rig.post("/inference/v1/generate", token_ids=[40], sampling_params=params)
        assert refused.status_code == 400
        assert word in refused.json()["error"]["message"]
    for body in ({}, {"token_ids": []}, {"token_ids": [10**8]}):
        assert (await rig.post("/inference/v1/generate", **body)).status_code == 400
    long = await rig.post("/v1/completions/render", prompt="a" * 200)
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert rig.core.added == []
