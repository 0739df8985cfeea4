"""A field of config.json that is moved, left out or null is computed as transformers does, or
refused by name. A drawn part of all cases runs each day, all of them in the long run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support.models.config_sweep import Change, changes_of, verdict
from tests.support.models.gemma4_checkpoints import GEMMA4_EXPERTS, GEMMA4_SMALL
from tests.support.models.hybrid_checkpoints import HYBRID
from tests.support.models.tiny_model import (
    LLAMA3_ROPE_SCALING,
    Architecture,
    make_tiny_checkpoint,
)

EQUAL = ("equal", "refused", "by transformers")
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {"architecture": name, "layers": 3} for name in get_args(Architecture)},
    **HYBRID,
    "gemma4-small": GEMMA4_SMALL,
    "gemma4-experts": GEMMA4_EXPERTS,
    "llama 3's rope": {"architecture": "llama", "rope_scaling": LLAMA3_ROPE_SCALING},
    "yarn": {
        "architecture": "qwen3",
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        },
    },
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def faults(family: str, folder: Path, drawn: int | None) -> list[str]:
    """List the changes of a family that the engine computes otherwise; drawn: how many of all."""
    make_tiny_checkpoint(folder, **FAMILIES[family])
    config = json.loads((folder / "config.json").read_text())
    assert verdict(folder, config, Change(("vocab_size",), config["vocab_size"])) == "equal"
    changes = list(changes_of(config))
    if drawn is not None:
        changes = random.Random(family).sample(changes, drawn)
    found = {str(change): verdict(folder, config, change) for change in changes}
    return [f"{name}: {said}" for name, said in found.items() if said not in EQUAL]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("drawn", [1, pytest.param(6, marks=pytest.mark.whole)])
def test_drawn_changes_of_fields_are_transformers_or_refused(
    family: str, drawn: int, tmp_path: Path
) -> None:
    assert faults(family, tmp_path, drawn) == []


@pytest.mark.slow
def test_every_change_of_a_field_is_transformers_or_refused(family: str, tmp_path: Path) -> None:
    assert faults(family, tmp_path, None) == []
