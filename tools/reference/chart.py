"""The page of the chart: its README, which `helm show readme` prints too."""

from __future__ import annotations

from pathlib import Path

from tools.reference.markdown import head

_README = Path(__file__).resolve().parents[2] / "charts" / "atom-operator" / "README.md"
_HEAD = (
    "The README of `charts/atom-operator`. [Installing](../install.md) says where images come from."
)


def page() -> str:
    title, _, text = _README.read_text(encoding="utf-8").partition("\n")
    return head(f"Chart {title.removeprefix('# ')}", _HEAD) + text
