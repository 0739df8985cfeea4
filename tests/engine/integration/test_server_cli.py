"""`atom generate` and `atom bench` on a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.server_process import run_atom, server_process
from tests.support.tiny_model import make_tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    return make_tiny_checkpoint(folder, "qwen3")


def test_generate_prints_each_answer_under_its_heading(checkpoint: Path) -> None:
    words = ["generate", "--model", str(checkpoint), "--device", "cpu", "--temperature", "0"]
    words += ["--max-tokens", "12"]
    both = run_atom(*words, "--prompt", "hello", "the cat")
    assert both.returncode == 0, both.stderr
    first, second = both.stdout.removeprefix("--- 1 ---\n").split("\n--- 2 ---\n")
    alone = run_atom(*words, "--prompt", "hello")
    assert alone.stdout == first + "\n"
    assert second.strip()
    chat = run_atom(*words, "--prompt", "hello", "--chat", "--system", "Be brief.")
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout != alone.stdout


def test_generate_refuses_a_bad_value_in_one_line(checkpoint: Path) -> None:
    words = ["generate", "--model", str(checkpoint), "--prompt", "x", "--temperature", "-1"]
    done = run_atom(*words)
    assert done.returncode == 1
    assert done.stderr == "error: temperature must be between 0 and 100, got -1.0\n"


def test_offline_benchmarks_end_with_one_json_object(checkpoint: Path) -> None:
    common = ["--model", str(checkpoint), "--device", "cpu", "--input-len", "20"]
    common += ["--output-len", "6", "--load-dummy"]
    done = run_atom("bench", "throughput", *common, "--num-prompts", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["requests"], report["input_tokens"], report["output_tokens"]) == (5, 100, 30)
    assert report["output_tokens_per_s"] == pytest.approx(30 / report["elapsed_s"], rel=0.01)
    done = run_atom("bench", "latency", *common, "--num-iters", "2", "--batch-size", "3")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["iterations"], report["batch_size"]) == (2, 3)
    assert 0 < report["batch_p50_ms"] <= report["batch_p99_ms"]


def test_the_server_benchmark_counts_what_it_got(checkpoint: Path, tmp_path: Path) -> None:
    words = ["bench", "serve", "--num-prompts", "6", "--max-concurrency", "3"]
    words += ["--input-len", "10", "--output-len", "8"]
    with server_process(checkpoint, tmp_path / "log") as server:
        server.wait_ready()
        good = run_atom(*words, "--base-url", server.url)
        refused = run_atom(*words, "--base-url", server.url, "--model", "another")
    assert good.returncode == 0, good.stdout + good.stderr
    report = json.loads(good.stdout.splitlines()[-1])
    assert (report["requests"], report["failures"], report["output_tokens"]) == (6, 0, 48)
    assert 0 < report["ttft_p50_ms"] <= report["e2e_p50_ms"]
    assert refused.returncode == 1
    report = json.loads(refused.stdout.splitlines()[-1])
    assert report["failures"] == 6
    assert "HTTP 404" in report["first_error"]
