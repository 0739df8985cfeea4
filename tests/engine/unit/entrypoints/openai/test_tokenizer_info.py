"""GET /tokenizer_info: the requests of lm-eval's remote tokenizer, as its source has them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import jinja2
import pytest

from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.server.server_process import server_process

MODEL = Path(__file__).parents[5] / "examples/models/atom-tiny"


class RemoteTokenizer:
    """lm_eval.utils.RemoteTokenizer in its requests: what it reads, and what it sends."""

    def __init__(self, rig: AppRig) -> None:
        self._rig = rig

    async def info(self) -> dict[str, object]:
        found = await self._rig.client.get("/tokenizer_info")
        assert found.status_code == 200, found.text
        return dict(found.json())

    async def encode(self, text: str) -> list[int]:
        sent = await self._rig.post("/tokenize", prompt=text, add_special_tokens=False)
        return list(sent.json()["tokens"])

    async def decode(self, tokens: list[int]) -> str:
        return str((await self._rig.post("/detokenize", tokens=tokens)).json()["prompt"])

    async def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        template = jinja2.Environment().from_string(str((await self.info())["chat_template"]))
        return template.render(messages=messages, add_generation_prompt=True)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AppRig]:
    async with serve_app(build_test_config(write_model_folder(tmp_path))) as rig:
        yield rig


async def test_lm_evals_remote_tokenizer_finds_what_it_asks_for(rig: AppRig) -> None:
    remote = RemoteTokenizer(rig)
    info = await remote.info()
    assert {"eos_token", "bos_token", "pad_token", "chat_template"} <= set(info)
    (end,) = await remote.encode(str(info["eos_token"]))
    assert end in rig.engine.config.model.eos_token_ids
    assert await remote.decode(await remote.encode("grüße")) == "grüße"


async def test_a_prompt_of_the_template_is_that_of_a_chat(rig: AppRig) -> None:
    remote = RemoteTokenizer(rig)
    prompt = await remote.apply_chat_template([{"role": "user", "content": "hi"}])
    tokens = await remote.encode(prompt)
    await rig.chat("hi", max_tokens=1)
    assert rig.core.added[0].prompt_token_ids == tokens


async def test_an_end_is_named_if_the_files_have_its_id_alone(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("eos_token", None)
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    async with serve_app(build_test_config(folder)) as rig:
        info = await RemoteTokenizer(rig).info()
        assert info["chat_template"] is None
        (end,) = await RemoteTokenizer(rig).encode(str(info["eos_token"]))
        assert end in rig.engine.config.model.eos_token_ids


@pytest.mark.parametrize("flags", [(), ("--enable-tokenizer-info-endpoint",)])
def test_the_template_is_shown_by_a_flag_alone(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with server_process(MODEL, tmp_path / "log", *flags) as server:
        server.wait_ready()
        found = server.get("/tokenizer_info")
        assert found.status_code == (200 if flags else 404)
        assert ("chat_template" if flags else "--enable-tokenizer-info-endpoint") in found.text
