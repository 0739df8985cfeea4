"""Adapters over HTTP: chosen by `model`, listed, loaded and unloaded beside running streams."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from tests.support.engine_core.kv_event_index import KVEventIndex
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.open_stream import OpenStream
from tests.support.server.server_process import ServerProcess, server_process
from tests.support.waiting import HANG_SECONDS, wait_until

BLOCK = 16
BASE = "tiny"  # as server_process names the model


@dataclass(frozen=True)
class Adapted:
    server: ServerProcess
    folder: Path
    checkpoint: Path

    def text(self, model: str, prompt: str = "Once upon a time", **fields: Any) -> str:
        answer = self.server.post(
            "/v1/completions",
            **{"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, **fields},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return str(answer.json()["choices"][0]["text"])

    def cached_tokens(self, model: str, tokens: list[int]) -> int:
        """Of a prompt, as the answer to it says."""
        fields = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
        answer = self.server.post("/v1/completions", **fields).raise_for_status()
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    def cached_blocks(self) -> Counter[object]:
        """Of each adapter, "" for the model alone, as a reader of all events knows it."""
        index = KVEventIndex()
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger, dealer.rcvtimeo = 0, int(HANG_SECONDS * 1000)
            dealer.connect(f"ipc://{self.folder}/replay")
            dealer.send_multipart([b"", bytes(8)])
            while payload := dealer.recv_multipart()[-1]:
                for event in msgspec.msgpack.decode(payload)[1]:
                    index.take(event)
        return Counter(known[1] for known in index.contents.values() if known is not None)

    def load(self, name: str, path: Path | str, **fields: bool) -> tuple[int, str]:
        body = {"lora_name": name, "lora_path": str(path), **fields}
        answer = self.server.post("/v1/load_lora_adapter", **body)
        error = answer.json().get("error") or {}
        return answer.status_code, error.get("message", "")

    def unload(self, name: str) -> int:
        return self.server.post("/v1/unload_lora_adapter", lora_name=name).status_code


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("lora")
    checkpoint = make_tiny_checkpoint(folder / "model", max_position_embeddings=8192)
    for number in range(3):
        make_adapter(folder / str(number), checkpoint, rank=3 + number, seed=number)
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/live",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    flags = (
        "--kv-events-config", json.dumps(events), "--block-size", str(BLOCK),
        "--enable-lora", "--lora-modules", f"first={folder / '0'}", "--max-loras", "1",
        "--max-cpu-loras", "2", "--allow-runtime-lora-updating", "--num-kv-blocks", "1200",
        "--tensor-parallel-size", "2", "--allowed-lora-paths", str(folder.parent),
    )  # fmt: skip
    with server_process(checkpoint, folder / "log", *flags) as server:
        yield Adapted(server.wait_ready(), folder, checkpoint)


def test_a_model_s_name_chooses_the_adapter(adapted: Adapted) -> None:
    assert adapted.text(BASE) != adapted.text("first")
    cards = {card["id"]: card for card in adapted.server.get("/v1/models").json()["data"]}
    assert cards.keys() == {BASE, "first"}
    assert cards["first"]["parent"] == BASE
    assert cards["first"]["root"] == str(adapted.folder / "0")
    assert "parent" not in cards[BASE]
    unknown = adapted.server.post("/v1/completions", model="second", prompt="x")
    assert unknown.status_code == 404
    assert "'first'" in unknown.json()["error"]["message"]


def test_adapters_come_and_go_beside_a_stream(adapted: Adapted) -> None:
    stream = OpenStream(adapted.server, model="first", max_tokens=600)
    assert adapted.load("second", adapted.folder / "1") == (200, "")
    assert adapted.load("second", adapted.folder / "1")[0] == 400  # it is there
    assert adapted.load("third", adapted.folder / "2")[0] == 409  # no room
    assert adapted.unload("first") == 200
    assert "[DONE]" not in stream.events, "it runs still"
    info = re.findall(r"^atom:lora_requests_info{(.*)} ", adapted.server.get("/metrics").text, re.M)
    assert len(info) == 1
    assert 'max_lora="1"' in info[0]
    assert stream.end()[-1] == "[DONE]"  # with an adapter whose name is gone
    texts = [adapted.text("second", prompt=text) for text in ("Once upon a time", "Then")]
    wait_until(
        lambda: adapted.load("second", adapted.folder / "2", load_inplace=True)[0] == 200,
        "room for the adapter",
    )
    changed = [adapted.text("second", prompt=text) for text in ("Once upon a time", "Then")]
    assert adapted.unload("second") == 200
    assert adapted.unload("second") == 404

    # The same name with other weights begins with nothing that was cached for the last one.
    wait_until(
        lambda: adapted.load("second", adapted.folder / "2")[0] == 200, "room for the adapter"
    )
    others = [adapted.text("second", prompt=text) for text in ("Once upon a time", "Then")]
    assert others == changed != texts
    assert adapted.unload("second") == 200
    wait_until(
        lambda: adapted.load("second", adapted.folder / "1")[0] == 200, "room for the adapter"
    )
    assert [adapted.text("second", prompt=text) for text in ("Once upon a time", "Then")] == texts
    assert adapted.unload("second") == 200
    wait_until(
        lambda: adapted.load("first", adapted.folder / "0")[0] == 200, "room for the adapter"
    )


def test_what_is_cached_of_an_adapter_goes_with_it(adapted: Adapted) -> None:
    tokens = [number % 50 + 1 for number in range(4 * BLOCK + 1)]
    for model in (BASE, "first"):
        adapted.cached_tokens(model, tokens)
        assert adapted.cached_tokens(model, tokens) == 4 * BLOCK
    wait_until(lambda: adapted.cached_blocks()["first"] >= 4, "the events tell of its blocks")
    base = adapted.cached_blocks()[""]
    assert base >= 4

    stream = OpenStream(adapted.server, model="first", max_tokens=600)
    assert adapted.unload("first") == 200
    wait_until(lambda: not adapted.cached_blocks()["first"], "its blocks are taken back")
    assert stream.end()[-1] == "[DONE]"
    wait_until(
        lambda: adapted.load("first", adapted.folder / "1")[0] == 200, "room for the adapter"
    )
    assert adapted.cached_blocks() == {"": base}, "who ran on promised nothing more"
    assert adapted.cached_tokens("first", tokens) == 0
    wait_until(lambda: adapted.cached_blocks() == {"": base, "first": 4}, "and only new blocks")

    wait_until(
        lambda: adapted.load("first", adapted.folder / "0", load_inplace=True)[0] == 200,
        "room for the adapter",
    )
    wait_until(lambda: adapted.cached_blocks() == {"": base}, "the weights before have left")
    assert adapted.cached_tokens("first", tokens) == 0
    assert adapted.cached_tokens("first", tokens) == 4 * BLOCK
    assert adapted.cached_tokens(BASE, tokens) == 4 * BLOCK


def test_what_cannot_be_served_is_refused_and_changes_nothing(
    adapted: Adapted, tmp_path: Path
) -> None:
    before = adapted.text("first")
    other = make_tiny_checkpoint(tmp_path / "other", hidden=32, heads=2, kv_heads=1)
    wrong = make_adapter(tmp_path / "wrong", other, rank=3)
    status, message = adapted.load("wrong", wrong)
    assert status == 400
    assert re.search(r"has shape .* call for .* was trained on", message)
    assert adapted.load("none", tmp_path / "nowhere")[0] == 400
    assert adapted.load("a b", adapted.folder / "1")[0] == 400
    status, message = adapted.load(
        "high", make_adapter(tmp_path / "high", adapted.checkpoint, rank=20)
    )
    assert status == 400
    assert "--max-lora-rank 20" in message
    assert adapted.load(BASE, adapted.folder / "1")[0] == 400
    packed = httpx.post(
        f"{adapted.server.url}/v1/load_lora_adapter",
        content=b"{}",
        headers={"content-encoding": "gzip"},
    )
    assert packed.status_code == 415
    assert adapted.server.post("/v1/load_lora_adapter", lora_name="x").json()["error"]["param"] == (
        "lora_path"
    )
    assert adapted.text("first") == before
    assert len(adapted.server.get("/v1/models").json()["data"]) == 2
