"""Two engines on one checkpoint: both are asked alike, and ratios say who is faster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers import beside
from benchmarks.peers.offline import WORKLOADS

FIGURES = {
    "decode": {"1": {"ms_per_step": 2.0}, "64": {"ms_per_step": 8.0}},
    "prefill": {"tokens_per_second": 300.0},
    "long": {"tokens_per_second": 200.0},
    "nano": {"output_tokens_per_second": 100.0},
}


def test_a_ratio_above_one_is_in_our_favour_for_times_and_for_rates() -> None:
    half = {
        "decode": {"1": {"ms_per_step": 4.0}, "64": {"ms_per_step": 16.0}},
        "prefill": {"tokens_per_second": 150.0},
        "long": {"tokens_per_second": 100.0},
        "nano": {"output_tokens_per_second": 50.0},
    }
    rows = list(beside.compared(FIGURES, half))
    assert len(rows) == 5
    assert {beside.ratio(name, ours, peer) for name, ours, peer in rows} == {2.0}
    assert all(any(work in name for work in WORKLOADS) for name, _, _ in rows)


@pytest.mark.whole  # a peer of which a process starts and ends is below
def test_the_engine_beside_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """In processes of their own, on one folder of weights."""
    on_cpu = json.dumps({"device": "cpu", "max_model_len": 2048})
    words = ["--shape", "tiny", "--layers", "1", "--peer", "atom:LLMEngine", "--rows", "1"]
    words += ["--workload", "decode", "--options", on_cpu, "--peer-options", on_cpu]
    assert beside.main(words) == 0
    said = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert list(said["ratios"]) == ["decode, 1 rows, ms"]
    assert said["ours"]["decode"]["1"]["ms_per_step"] > 0


def test_a_peer_that_does_not_start_is_named() -> None:
    peer = "no_such_engine:LLM"
    with pytest.raises(SystemExit, match="no_such_engine:LLM ended with code 1"):
        beside.figures(sys.executable, peer, Path("/nowhere"), {}, ["--rows", "1"])
