"""Tiny checkpoints that can be divided over up to eight ranks: as many heads, experts for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.engine.integration.ranks.test_tensor_parallel import FAMILIES
from tests.support.models.tiny_model import make_tiny_checkpoint

HEADS = 8
# Experts of every family, whatever it calls them, and their inner size.
_EXPERTS = {
    "num_local_experts": 8, "num_experts": 8, "n_routed_experts": 8, "moe_intermediate_size": 40,
}  # fmt: skip
# Of layers that keep states, which count their heads by themselves.
_STATE_HEADS = {"linear_num_key_heads": HEADS, "linear_num_value_heads": 2 * HEADS}


def wide_checkpoint(folder: Path, family: str, **shape: int) -> str:
    """Write the checkpoint of a family of test_tensor_parallel with eight heads, of which four have
    keys, and with eight experts where it has any; returns its folder."""
    settings: dict[str, Any] = {"heads": HEADS, "kv_heads": 4, **FAMILIES[family], **shape}
    given = settings.pop("extra", {})
    extra = {key: _EXPERTS.get(key, value) for key, value in given.items()}
    if family.startswith("states"):
        extra |= _STATE_HEADS
    settings["extra"] = {"vocab_size": 384, **extra}
    return str(make_tiny_checkpoint(folder, **settings))
