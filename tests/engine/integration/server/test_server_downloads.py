"""A server that fetches its model from the hub says how far it is, and serves when it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.server.hub_server import HubServer
from tests.support.server.server_process import PEERS, START_SECONDS, ServerProcess, server_process
from tests.support.waiting import wait_until

MODEL = "acme/atom-tiny"
DEMO = Path(__file__).parents[4] / "examples" / "models" / "atom-tiny"
MIB = 1 << 20
# The hub's client writes ten MiB at a time; the demo's own weights are smaller than that.
MORE = "more.safetensors"
SEEN_BYTES = 10 * MIB


def progress(server: ServerProcess) -> dict[str, Any]:
    """What /health tells of the start-up."""
    code, answer = server.health()
    shown: Any = answer.get("progress", {})
    return dict(shown) if code == 503 else {}


def test_health_follows_the_download(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in DEMO.iterdir()}
    files[MORE] = bytes(32 * MIB)
    wanted = sum(len(content) for name, content in files.items() if name != "README.md")
    with HubServer(MODEL, files, gate_after={MORE: 16 * MIB}) as hub:
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        flags = ("--max-model-len", "128", "--max-num-seqs", "4")
        with server_process(MODEL, tmp_path / "log", *flags, environment=home) as server:

            def at_the_gate() -> bool:
                return int(progress(server).get("bytes_done") or 0) >= SEEN_BYTES

            wait_until(at_the_gate, "half of the download in /health")
            shown = progress(server)
            assert shown["phase"] == "downloading weights"
            assert shown["bytes_total"] == wanted
            assert SEEN_BYTES <= shown["bytes_done"] < wanted
            hub.gate.set()
            server.wait_ready()


def test_a_server_with_workers_fetches_no_weights(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in DEMO.iterdir()}
    with (
        server_process(
            DEMO, tmp_path / "worker", "--max-model-len", "128", environment=PEERS
        ) as worker,
        HubServer(MODEL, files) as hub,
    ):
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), **PEERS}
        flags = ("--max-model-len", "128", "--worker-urls", worker.url)
        with server_process(MODEL, tmp_path / "log", *flags, environment=home) as front:
            front.wait_ready()
            asked = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
            told = front.post("/v1/completions", **asked).json()["choices"][0]["text"]
            assert told == worker.post("/v1/completions", **asked).json()["choices"][0]["text"]
    fetched = {request.rpartition("/")[2] for request in hub.requests if "/resolve/" in request}
    assert "config.json" in fetched
    assert "model.safetensors" in files
    assert not any(name.endswith(".safetensors") for name in fetched)


def test_a_model_that_is_there_already_is_no_download(tmp_path: Path) -> None:
    seen: list[str] = []
    with server_process(DEMO, tmp_path / "log", "--max-model-len", "128") as server:

        def ready() -> bool:
            seen.append(str(progress(server).get("phase")))
            return server.health()[0] == 200

        wait_until(ready, "a server that serves", START_SECONDS)
    assert "downloading weights" not in seen
