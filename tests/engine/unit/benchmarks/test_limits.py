"""The limit of a step: its bytes and products, counted by hand for a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from atom.sizing.model_facts import ModelFacts
from benchmarks import gpu
from benchmarks.measures import limits
from benchmarks.measures.limits import Ceilings, Work, decode_work, measured_ceilings, prompt_work
from benchmarks.workloads.shapes import SHAPES

H, V, LAYERS, HEADS, KV_HEADS, D, INNER = 256, 4096, 4, 8, 4, 32, 768
ATTENTION = H * D * (HEADS + 2 * KV_HEADS) + HEADS * D * H
MLP = 3 * H * INNER
DENSE = ModelFacts.from_hf_config(SHAPES["tiny"])
MIXTURE = ModelFacts.from_hf_config(SHAPES["tiny-moe"])


def test_a_decode_reads_weights_and_cache_once_and_multiplies_them_for_each_row() -> None:
    rows, context = 3, 100
    work = decode_work(DENSE, rows, context)
    cached = LAYERS * 2 * KV_HEADS * D
    assert work.moved_bytes == 2 * (LAYERS * (ATTENTION + MLP) + H * V + rows * context * cached)
    scores = LAYERS * 2 * HEADS * D * context
    assert work.flops == 2 * rows * (LAYERS * (ATTENTION + MLP) + H * V + scores)


def test_a_prompt_sees_half_of_itself_and_draws_one_token() -> None:
    prompts, length = 2, 50
    work = prompt_work(DENSE, prompts, length)
    tokens = prompts * length
    scores = LAYERS * HEADS * 2 * D * length / 2
    expected = 2 * tokens * (LAYERS * (ATTENTION + MLP) + scores) + 2 * prompts * H * V
    assert work.flops == pytest.approx(expected)


def test_a_state_is_read_and_written_at_any_context() -> None:
    facts = ModelFacts.from_hf_config(SHAPES["qwen3-next-80b-a3b"])
    state = 36 * 4 * (32 * 128 * 128 + 8192 * 3)
    token = 12 * 2 * 2 * 256 * 2  # of the layers that attend, in bfloat16
    one, other = (decode_work(facts, 1, context) for context in (1_000, 2_000))
    assert other.moved_bytes - one.moved_bytes == 1_000 * token
    assert other.flops - one.flops == 2 * 1_000 * 12 * 16 * 2 * 256
    few, more = (decode_work(facts, rows, 0, touched=1.0) for rows in (1, 4))
    assert more.moved_bytes - few.moved_bytes == 3 * 2 * state


def test_the_experts_that_were_counted_are_those_that_are_read() -> None:
    expert = 3 * H * 64
    none, one = (decode_work(MIXTURE, 8, 100, touched=count) for count in (0.0, 1.0))
    assert one.moved_bytes - none.moved_bytes == pytest.approx(2 * LAYERS * expert)
    assert one.flops == none.flops, "a row goes through as many experts as ever"


def test_the_limit_is_whichever_takes_longer() -> None:
    card = Ceilings(bytes_per_second=100.0, flops_per_second=10.0)
    assert Work(moved_bytes=50.0, flops=1.0).seconds(card) == 0.5
    assert Work(moved_bytes=50.0, flops=20.0).seconds(card) == 2.0


def test_any_config_json_is_measured_and_its_share_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Products of a type that a CPU only emulates would make the limit a hundredth of what it is.
    multiplied: list[torch.dtype] = []

    def recorded(device: torch.device, dtype: torch.dtype) -> Ceilings:
        multiplied.append(dtype)
        return measured_ceilings(device, dtype)

    monkeypatch.setattr(limits, "measured_ceilings", recorded)
    config = {**SHAPES["tiny-moe"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(config))
    flags = ["--config", str(path), "--device", "cpu", "--workload", "short"]
    assert gpu.main([*flags, "--max-model-len", "256", "--max-num-seqs", "8"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["architecture"] == "Qwen3MoeForCausalLM"
    assert multiplied == [torch.float32] == [getattr(torch, found["dtype"])]
    short = found["short"]
    limit = Work(short["moved_bytes"], short["flops"]).seconds(Ceilings(**found["ceilings"]))
    assert short["limit_share"] == pytest.approx(limit / (short["ms_per_step"] / 1e3))
    assert any("short" in line and "%" in line and "TFLOP" in line for line in shown)


def test_a_workload_that_the_context_does_not_hold_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--shape", "tiny", "--workload", "nano", "--max-model-len", "256"]) == 1
    assert "raise it" in capsys.readouterr().err
    assert gpu.main(["--config", str(tmp_path / "none.json")]) == 1
    assert "there is no such file" in capsys.readouterr().err
