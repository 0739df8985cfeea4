"""`atom generate` and `atom bench` on a real engine."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import (
    ServerProcess,
    command_environment,
    run_atom,
    server_process,
)


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


def test_generate_ends_quietly_when_nobody_reads_on(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "atom.entrypoints.cli", "generate", "--model", str(checkpoint)]
    command += ["--device", "cpu", "--num-kv-blocks", "64", "--ignore-eos", "--max-tokens", "400"]
    with subprocess.Popen(
        [*command, "--prompt", *"abcdefgh"],
        env=command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 141


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


def report_of(*words: str) -> dict[str, Any]:
    """What `atom bench serve` says in its last line; it fails if and only if a request did."""
    done = run_atom("bench", "serve", *words)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == (1 if report["failed"] else 0), done.stderr
    return report


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(checkpoint, log) as server:
        yield server.wait_ready()


def test_the_server_benchmark_counts_what_it_got(server: ServerProcess, tmp_path: Path) -> None:
    words = ["--port", str(server.port), "--num-prompts", "6", "--max-concurrency", "3"]
    words += ["--random-input-len", "10", "--random-output-len", "8", "--num-warmups", "1"]
    words += ["--goodput", "e2el:600000", "--metric-percentiles", "25,99.9"]
    words += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
    report = report_of(*words)
    assert (report["completed"], report["failed"]) == (6, 0)
    assert (report["total_input_tokens"], report["total_output_tokens"]) == (60, 48)
    assert report["request_goodput"] == report["request_throughput"] > 0
    for metric in ("ttft", "e2el"):
        assert 0 < report[f"p25_{metric}_ms"] <= report[f"p99.9_{metric}_ms"]
    for metric in ("tpot", "itl"):  # 0 where a busy machine lets several tokens come at once
        assert 0 <= report[f"p25_{metric}_ms"] <= report[f"p99.9_{metric}_ms"]
    # Equal where a busy machine lets each answer come in one piece.
    assert report["mean_ttft_ms"] <= report["mean_e2el_ms"]
    assert json.loads((tmp_path / "r.json").read_text()) == report


def test_the_server_benchmark_counts_what_failed(server: ServerProcess) -> None:
    report = report_of("--port", str(server.port), "--model", "another", "--num-prompts", "6")
    assert (report["completed"], report["failed"]) == (0, 6)
    ((error, count),) = report["errors"].items()
    assert "HTTP 404" in error
    assert count == 6


def test_the_server_benchmark_keeps_to_its_rate(server: ServerProcess) -> None:
    words = ["--port", str(server.port), "--num-prompts", "11", "--output-len", "2"]
    report = report_of(*words, "--request-rate", "10", "--burstiness", "5")
    assert report["completed"] == 11
    assert report["duration"] >= 1.0, "the last of eleven comes after a second"


def test_the_server_benchmark_chats_with_what_a_file_holds(
    server: ServerProcess, tmp_path: Path
) -> None:
    turns = [{"from": "human", "value": "ab ab"}, {"from": "gpt", "value": "abcdefghijkl"}]
    (tmp_path / "sharegpt.json").write_text(
        json.dumps([{"conversations": turns}, {"conversations": turns[:1]}])
    )
    (tmp_path / "custom.jsonl").write_text(
        '{"prompt": "ab ab", "output_tokens": 3}\n\n{"prompt": [5, 6, 7], "output_tokens": 4}\n'
    )
    chat = ["--port", str(server.port), "--endpoint", "/v1/chat/completions", "--num-prompts"]
    answer_tokens = len(server.tokenize(turns[1]["value"]))
    sharegpt = ["--dataset-name", "sharegpt", "--dataset-path", str(tmp_path / "sharegpt.json")]
    report = report_of(*chat, "2", *sharegpt)
    assert (report["completed"], report["total_output_tokens"]) == (2, 2 * answer_tokens)
    custom = ["--dataset-name", "custom", "--dataset-path", str(tmp_path / "custom.jsonl")]
    report = report_of(*chat, "3", *custom)
    assert (report["completed"], report["total_output_tokens"]) == (3, 3 + 4 + 3)


def test_a_replayed_trace_is_exact_and_its_blocks_are_shared_in_the_server(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The server counts what it found in its cache; the trace says what that must be."""
    source = random.Random(5)
    lines, seen, expected = [], [()], 0
    for number in range(40):
        ids = [source.randrange(3) for _ in range(source.randrange(1, 8))]
        tokens = 16 * len(ids) - source.randrange(16)
        line = {"input_length": tokens, "output_length": source.randrange(1, 9), "hash_ids": ids}
        # One after another, so that each finds all that came before it.
        line |= {"request_id": f"r{number}", "wait_for": [f"r{number - 1}"] if number else []}
        lines.append(json.dumps(line))
        # Whole blocks that an earlier prompt begins with too; the last token is always computed.
        whole = tuple(ids[: (tokens - 1) // 16])
        known = (whole[:count] for count in range(len(whole), -1, -1))
        expected += 16 * len(next(prefix for prefix in known if prefix in seen))
        full = ids[: tokens // 16]
        seen += [tuple(full[:count]) for count in range(len(full) + 1)]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    words = ["--port", str(server.port), "--seed", "11", "--dataset-name", "timed_trace"]
    report = report_of(*words, "--dataset-path", str(tmp_path / "trace.jsonl"))
    assert (report["completed"], report["num_prompts"]) == (40, 40)
    asked = [json.loads(line) for line in lines]
    assert report["total_input_tokens"] == sum(line["input_length"] for line in asked)
    assert report["total_output_tokens"] == sum(line["output_length"] for line in asked)
    assert report["total_cached_tokens"] == expected > 0


def test_a_sweep_finds_its_prefixes_once_a_point_and_saves_a_picture(
    server: ServerProcess, tmp_path: Path
) -> None:
    words = ["--port", str(server.port), "--dataset-name", "prefix_repetition", "--num-prompts"]
    words += ["6", "--prefix-repetition-num-prefixes", "2", "--prefix-repetition-prefix-len", "32"]
    words += ["--prefix-repetition-suffix-len", "8", "--output-len", "2", "--num-warmups", "3"]
    words += ["--max-concurrency", "1,2", "--goodput", "e2el:600000", "--save-result"]
    result = tmp_path / "sweep.json"
    report = report_of_sweep(
        *words, "--result-dir", str(tmp_path), "--result-filename", result.name
    )
    assert [point["max_concurrency"] for point in report["points"]] == [1, 2]
    first = report["points"][0]
    assert (first["completed"], first["total_input_tokens"]) == (6, 6 * 40)
    assert first["total_cached_tokens"] == 4 * 32, "all but the first with each prefix"
    assert all(point["total_cached_tokens"] <= 4 * 32 for point in report["points"])
    assert json.loads(result.read_text()) == report
    assert "goodput within e2el" in result.with_suffix(".svg").read_text()


def report_of_sweep(*words: str) -> dict[str, Any]:
    done = run_atom("bench", "serve", *words)
    assert done.returncode == 0, done.stderr
    assert "2 in flight: 6 of 6 answered, 0 in flight, 0 failed" in done.stderr
    assert "highest goodput:" in done.stdout
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_the_server_benchmark_brings_the_servers_key(checkpoint: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    with server_process(checkpoint, tmp_path / "log", "--api-key-file", str(key)) as server:
        server.wait_ready()
        words = ["--port", str(server.port), "--num-prompts", "2", "--output-len", "2"]
        assert report_of(*words, "--api-key-file", str(key))["completed"] == 2
        without = run_atom("bench", "serve", *words)
    assert without.returncode == 1
    assert "--api-key-file" in without.stderr


def test_a_server_parses_answers_as_its_flags_say(checkpoint: Path, tmp_path: Path) -> None:
    """As a command line of vLLM has them, and in each of several HTTP processes."""
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--num-kv-blocks", "100"]
    flags += ["--reasoning-parser", "deepseek_r1", "--api-server-count", "2"]
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": {"name": "ping"}}],
        "max_tokens": 5,
    }
    with server_process(checkpoint, tmp_path / "log", *flags) as server:
        server.wait_ready()
        with server.client() as client:
            answer = client.post("/v1/chat/completions", json=body).json()
        assert "tool call parser hermes, reasoning parser deepseek_r1" in server.log
    message = answer["choices"][0]["message"]
    assert message["content"] is None  # this model's answers begin with reasoning, the flag says
    assert message["reasoning"]


def test_an_unknown_parser_is_refused_with_the_names_there_are(checkpoint: Path) -> None:
    done = run_atom("serve", "--model", str(checkpoint), "--tool-call-parser", "qwen")
    assert done.returncode == 2
    assert "hermes" in done.stderr
