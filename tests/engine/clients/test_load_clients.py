"""Load clients that nobody here wrote, at pinned versions, against a real server: each sends a few
streamed requests, none of which fails."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.agents.session import check_installed
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import SERVED_NAME, ServerProcess, server_process
from tools.pinned_environments import LOAD, VLLM_BENCH, python_bin

pytestmark = pytest.mark.slow

REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS = 6, 16, 8
RUN_SECONDS = 400.0  # only bounds a hang


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(model, log, "--max-model-len", "512") as server:
        yield server.wait_ready()


def run(program: Path, folder: Path, *words: str) -> None:
    """One run of a load client to its end, with no card in reach."""
    check_installed(program)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_NO_USAGE_STATS": "1",
    }
    ended = subprocess.run(
        [program, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def check_answered(server: ServerProcess, before: float) -> None:
    """The server has answered as many as the client says (one may ask once more, to look)."""
    assert server.metric("requests_finished_total") - before >= REQUESTS


@pytest.mark.parametrize("api", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm(api: str, model: Path, server: ServerProcess, tmp_path: Path) -> None:
    before, report = server.metric("requests_finished_total"), tmp_path / "report.json"
    backend = f"kind=openai_http,target={server.url},model={SERVED_NAME},request_format={api}"
    data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS}"
    words = ["run", "--backend", backend, "--data", data, "--disable-console"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={model}"]
    words += ["--profile", "kind=concurrent,streams=2"]
    words += ["--constraint", f"kind=max_requests,count={REQUESTS}"]
    run(python_bin(LOAD) / "guidellm", tmp_path, *words, "--output", f"kind=json,path={report}")
    (found,) = json.loads(report.read_text())["benchmarks"]
    counts = {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}
    assert found["metrics"]["request_totals"] == counts
    check_answered(server, before)


def test_aiperf(model: Path, server: ServerProcess, tmp_path: Path) -> None:
    before = server.metric("requests_finished_total")
    words = ["profile", "--model", SERVED_NAME, "--url", server.url, "--endpoint-type", "chat"]
    words += ["--streaming", "--tokenizer", str(model), "--ui", "none"]
    words += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS)]
    words += ["--output-tokens-mean", str(ANSWER_TOKENS), "--extra-inputs", "ignore_eos:true"]
    words += ["--use-server-token-count"]
    words += ["--request-count", str(REQUESTS), "--concurrency", "2"]
    run(python_bin(LOAD) / "aiperf", tmp_path, *words, "--output-artifact-dir", str(tmp_path / "a"))
    (path,) = (tmp_path / "a").rglob("profile_export_aiperf.json")
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["request_count"]["avg"] == REQUESTS
    assert found["error_summary"] == []
    assert found["total_output_tokens"]["avg"] == REQUESTS * ANSWER_TOKENS
    check_answered(server, before)


@pytest.mark.parametrize(
    ("backend", "path"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllm_bench_serve(
    backend: str, path: str, model: Path, server: ServerProcess, tmp_path: Path
) -> None:
    before = server.metric("requests_finished_total")
    words = ["bench", "serve", "--backend", backend, "--endpoint", path]
    words += ["--base-url", server.url, "--model", SERVED_NAME, "--tokenizer", str(model)]
    words += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    words += ["--random-output-len", str(ANSWER_TOKENS), "--ignore-eos"]
    words += ["--num-prompts", str(REQUESTS), "--max-concurrency", "2", "--disable-tqdm"]
    words += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "found.json"]
    run(python_bin(VLLM_BENCH) / "vllm", tmp_path, *words)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["completed"], found["failed"]) == (REQUESTS, 0)
    assert found["total_output_tokens"] == REQUESTS * ANSWER_TOKENS
    check_answered(server, before)
