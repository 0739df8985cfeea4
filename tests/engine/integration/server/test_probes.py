"""Probes are answered while the engine computes a long prompt."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import server_process

PROMPT_TOKENS = 12_000
CHUNK_TOKENS = 64  # so the prompt takes nearly two hundred steps
PROBES = ("/ping", "/health", "/ready", "/live", "/load")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_probes_are_answered_during_a_long_prefill(processes: str, tmp_path: Path) -> None:
    model = make_tiny_checkpoint(tmp_path / "model", "llama", max_position_embeddings=16_384)
    flags = ["--num-kv-blocks", "1200", "--max-num-batched-tokens", str(CHUNK_TOKENS)]
    flags += ["--max-num-seqs", "4", "--api-server-count", processes]
    with server_process(model, tmp_path / "log", *flags) as server:
        server.wait_ready()
        answers = []

        def ask() -> None:
            prompt = "long " * (PROMPT_TOKENS // 4)
            answers.append(server.post("/v1/completions", prompt=prompt, max_tokens=1))

        asking = threading.Thread(target=ask)
        asking.start()
        rounds = 0
        while not answers:
            statuses = {path: server.get(path).status_code for path in PROBES}
            assert statuses == dict.fromkeys(PROBES, 200)
            rounds += not answers
        asking.join()
        (answer,) = answers
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] >= PROMPT_TOKENS
        assert rounds > 1, "all of them, again and again, before the prompt was computed"
