"""What the README says that its manifest needs is what the planner prints for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atom_operator.kubectl_atom import main as kubectl_atom

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_readmes_manifest_is_planned_with_the_figures_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = README.read_text(encoding="utf-8")
    (manifest,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tokens,) = re.findall(r"([\d,]+) tokens of KV cache", text)
    (sequences,) = re.findall(r"(\d+) sequences of full length", text)
    file = tmp_path / "qwen3-8b.yaml"
    file.write_text(manifest, encoding="utf-8")
    assert kubectl_atom(["plan", "-f", str(file)]) == 0
    printed = capsys.readouterr().out
    assert f"{tokens} tokens" in printed
    assert re.search(rf"at 32,768 tokens\s+{sequences} sequences", printed), printed
