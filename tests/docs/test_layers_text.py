"""The architecture page gives the layers in the order that the import contracts have."""

from __future__ import annotations

import configparser
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Layers")[2]
CONTRACTS = {
    "- Operator: ": "operator-layers",
    "- Engine: ": "engine-layers",
    "- Inside `model_engine`: ": "core-layers",
    "Inside `entrypoints`: ": "entrypoint-layers",
}


def chain(start: str) -> list[list[str]]:
    """The modules that a sentence names, highest layer first."""
    sentence = TEXT.partition(start)[2].partition(".")[0]
    return [re.findall(r"`(\w+)`", part) for part in sentence.split(">")]


def places(contract: str) -> dict[str, int]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    lines = parser[f"importlinter:contract:{contract}"]["layers"].split("\n")
    layers = [line for line in lines if line and not line.startswith("#")]
    return {
        module.strip(): number for number, line in enumerate(layers) for module in line.split("|")
    }


@pytest.mark.parametrize(("start", "contract"), CONTRACTS.items())
def test_the_page_has_the_order_of_the_contract(start: str, contract: str) -> None:
    known, named = places(contract), [part for part in chain(start) if part]
    assert sum(map(len, named)) >= 5
    assert [name for part in named for name in part if name not in known] == []
    for upper, lower in pairwise(named):
        assert max(known[name] for name in upper) < min(known[name] for name in lower)
