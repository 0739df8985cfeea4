"""Every next step that a start prints works: the command is pasted into a shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.startup.next_steps import Address, next_steps
from atom.entrypoints.startup.supported_endpoints import Offer
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.models.pooling_checkpoint import make_embedder, make_reranker
from tests.support.server.http_app import HttpRig, serve_app, serve_model
from tests.support.server.pooling_examples import EXAMPLES
from tests.support.server.printed_steps import pasted, pasted_at
from tests.support.server.self_signed import write_certificate
from tests.support.server.server_process import server_process
from tests.support.waiting import wait_until

MODEL = Path(__file__).parents[4] / "examples/models/atom-tiny"
KEY = "a key, with 'quotes'"


def offer_of(rig: HttpRig) -> Offer:
    return rig.state.offer(rig.engine)


async def listed(rig: HttpRig) -> dict[str, Any]:
    (card,) = (await rig.client.get("/v1/models", headers=authorization(KEY))).json()["data"]
    return dict(card)


def authorization(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize("has_template", [True, False])
async def test_a_model_is_asked_by_the_endpoint_that_it_answers(
    tmp_path: Path, has_template: bool, key: str
) -> None:
    folder = write_model_folder(tmp_path, context_tokens=512)
    if not has_template:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    async with serve_app(build_test_config(folder), api_key=key or None) as rig:
        address = Address(rig.url, needs_key=bool(key))
        offer = offer_of(rig)
        answer = json.loads(await pasted_at(address, [offer], key))
        assert answer["object"] == ("chat.completion" if has_template else "text_completion")
        assert (await listed(rig))["supported_endpoints"] == list(offer.endpoints)
        first, *_ = next_steps(address, [offer])
        assert first.startswith("chat in a browser" if has_template else "no chats")


@pytest.mark.parametrize(("make", "kind"), [(make_embedder, "list"), (make_reranker, "results")])
async def test_a_pooling_model_is_asked_for_what_it_computes(
    tmp_path: Path, make: Callable[[Path], Path], kind: str
) -> None:
    options = {"num_kv_blocks": 50, "max_model_len": 512}
    options |= {} if make is make_embedder else {"runner": "pooling", "convert": "classify"}
    config = build_test_config(make(tmp_path / "model"), **options)
    async with serve_model(config) as rig:
        offer = offer_of(rig)
        answer = json.loads(await pasted_at(Address(rig.url), [offer]))
        assert kind in (answer.get("object"), *answer)
        for path in offer.endpoints:
            assert (await rig.post(path, **EXAMPLES[path] | {"model": "tiny"})).status_code == 200


def test_a_certificate_of_another_name_stops_nobody(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    flags = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with server_process(MODEL, tmp_path / "log", *flags, "--api-server-count", "2") as server:
        server.wait_ready()
        wait_until(lambda: "ask from a shell" in server.log, "the start is told")
        assert json.loads(pasted(server.log))["choices"][0]["message"]["content"]


def test_the_model_is_named_if_there_are_several() -> None:
    texts, chats = Offer("it's", ("/v1/completions",)), Offer("chat", ("/v1/chat/completions",))
    browser, shell = next_steps(Address("http://h:1"), [texts, chats])
    assert browser.endswith("http://h:1/")
    assert '"model": "chat"' in shell
