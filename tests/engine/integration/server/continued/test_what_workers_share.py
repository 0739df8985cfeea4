"""A server without an engine and its workers share adapters, keys and certificates."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.self_signed import write_certificate
from tests.support.server.server_process import PEERS, server_process
from tests.support.waiting import HANG_SECONDS

FLAGS = ("--max-num-seqs", "8", "--num-kv-blocks", "200", "--max-model-len", "256")
KEY = "sk-of-the-test"
ASKED = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")


def test_an_adapter_is_chosen_through_it(checkpoint: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", checkpoint, seed=1)
    flags = (*FLAGS, "--enable-lora", "--lora-modules", f"first={adapter}")
    with server_process(checkpoint, tmp_path / "worker", *flags, environment=PEERS) as worker:
        front_flags = (*flags, "--worker-urls", worker.url)
        with server_process(
            checkpoint, tmp_path / "front", *front_flags, environment=PEERS
        ) as front:
            worker.wait_ready()
            front.wait_ready()
            asked = [{**ASKED, "model": model} for model in ("first", "tiny")]
            told = [front.post("/v1/completions", **each).json() for each in asked]
            own = [worker.post("/v1/completions", **each).json() for each in asked]
            texts = [answer["choices"][0]["text"] for answer in told]
            assert texts == [answer["choices"][0]["text"] for answer in own]
            assert texts[0] != texts[1], "an adapter that changes nothing proves nothing"
            cards = {card["id"] for card in front.get("/v1/models").json()["data"]}
            assert cards == {"first", "tiny"}


def test_workers_are_asked_by_its_key_and_certificate(checkpoint: Path, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "api-key").write_text(KEY)
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    flags = (*FLAGS, *tls, "--api-key-file", str(tmp_path / "api-key"))
    with server_process(checkpoint, tmp_path / "worker", *flags, environment=PEERS) as worker:
        front_flags = (*flags, "--worker-urls", worker.url)
        with server_process(
            checkpoint, tmp_path / "front", *front_flags, environment=PEERS
        ) as front:
            worker.wait_ready()
            front.wait_ready()
            assert front.url.startswith("https:")
            assert front.post("/v1/completions", **ASKED).status_code == 401
            with httpx.Client(base_url=front.url, verify=False, timeout=HANG_SECONDS) as client:
                client.headers["authorization"] = f"Bearer {KEY}"
                answer = client.post("/v1/completions", json=ASKED)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == ASKED["max_tokens"]
