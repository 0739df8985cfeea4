"""The report that a card's owner attaches to an issue, of AITER's double and of no card."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from atom import preflight
from atom.self_test import report as self_test
from tests.support.aiter.aiter_models import amd_card
from tests.support.operator.fake_amdsmi import fake_amdsmi


def _written(file: Path) -> tuple[dict, str]:
    with tarfile.open(file) as archive:
        parts = {name.rpartition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
        told, text = (parts[name] for name in ("report.json", "summary.txt"))
        assert told is not None
        assert text is not None
        return json.loads(told.read()), text.read().decode()


def test_the_report_tells_what_was_chosen_and_what_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AITER_LOG_LEVEL", "INFO")
    monkeypatch.setenv("ATOM_API_KEY", "not to be told")
    with amd_card(monkeypatch, "2026-08"):
        assert preflight.main(["--report", "--output", str(tmp_path / "full.tar.gz")]) == 0
    told, text = _written(tmp_path / "full.tar.gz")
    assert text.strip() in capsys.readouterr().out
    assert told["architecture"] == "gfx942"
    assert told["chosen"]["dense"]["chosen"]["paged_attention"] == "aiter"
    assert told["chosen"]["latent, fp8 experts"]["chosen"]["experts"] == "aiter"
    passed = {item["exercise"] for item in told["outcomes"] if item["error"] is None}
    assert {"norms", "latent attention", "fp8 experts", "attention to fnuz"} <= passed
    assert told["software"]["variables"]["AITER_LOG_LEVEL"] == "INFO"
    assert "not to be told" not in text + json.dumps(told)


def test_a_check_says_what_would_be_used_and_tries_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", fake_amdsmi())
    with amd_card(monkeypatch, "2026-08", "gfx950") as aiter:
        assert preflight.main(["--check"]) == 0
    said = capsys.readouterr().out
    assert "cpu gfx950" in said
    assert "aiter 2026-08" in said
    assert re.search(r"dense .* yes .* aiter \(\d+\)", said)
    assert "partition DPX" in said
    assert "outcomes" not in said
    assert not aiter.calls


def test_a_check_fails_where_a_kind_of_model_cannot_be_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atom.model_ops.backends._PREFERENCES", {"cpu": ("aiter",)})
    monkeypatch.setitem(sys.modules, "aiter", None)
    assert preflight.main(["--check"]) == 1
    assert "aiter: ModuleNotFoundError" in capsys.readouterr().out


def test_what_fails_is_a_line_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = ["aiter.silu_and_mul"]
    with amd_card(monkeypatch, "2026-08", lacking=lacking):
        assert preflight.main(["--report", "--output", str(tmp_path / "full.tar.gz")]) == 1
    told, text = _written(tmp_path / "full.tar.gz")
    failed = {item["exercise"] for item in told["outcomes"] if item["error"] is not None}
    assert failed == {"activation", "normed product", "normed fp8 product"}
    assert "aiter 2026-08 has no silu_and_mul" in text


def test_a_machine_without_a_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    told = self_test.make_report("cpu", torch.device("cpu"))
    assert told.unusable["aiter"] == "torch sees no AMD GPU"
    assert told.unusable["triton"] == "torch sees no GPU"
    assert not told.outcomes
    assert "aiter: torch sees no AMD GPU" in self_test.summary(told)
