"""The benchmark of speculation runs without a card, by each kind of what drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import speculation
from benchmarks.workloads.shapes import write_shape


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_both_engines_answer_and_the_proposer_is_timed(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model", "draft"):
        (tmp_path / name).mkdir()
    model = write_shape("tiny", tmp_path / "model")
    words = ["--model", str(model), "--load-dummy", "--method", method, "--texts", "random"]
    if method == "draft_model":
        words += ["--draft-model", str(write_shape("tiny", tmp_path / "draft"))]
    words += ["--rows", "2", "--output-tokens", "8", "--prompt-tokens", "16", "--turns", "1"]
    words += ["--acceptance", "0.7", "--fixed", "--drafts", "3"]
    assert speculation.main(words) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["results"][0]["off_tokens_per_s"] > 0
    assert told["proposer"]["drafter_rows"] == 2
    assert told["proposer"]["drafter_launched_us"] > 0
