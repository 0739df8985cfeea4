"""A hybrid whose layers with attention have windows.

No family that is served has states beside windows; the engine caches and exchanges both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from atom.sizing.attention.kinds import GroupedAttention
from atom.sizing.families import hybrid
from atom.sizing.mask_rule import CAUSAL, MaskKind, MaskRule, sliding_window
from tests.support.models.tiny_model import make_tiny_checkpoint

# The masks of the layers with attention, in their order.
MASKS: dict[str, tuple[MaskRule, ...]] = {
    "beside dense": (CAUSAL, sliding_window(20)),
    "windows alone": (sliding_window(24), sliding_window(24)),
    "windows before dense": (sliding_window(40), sliding_window(18), CAUSAL),
    "chunks": (CAUSAL, MaskRule(MaskKind.CHUNKED, 32)),
}


def make_masked_hybrid(folder: Path, name: str, patch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose layers have the masks of this name until the patch is undone."""
    masks, attention_of = MASKS[name], hybrid._attention

    def masked(config: Any, index: int, net: Any) -> Any:
        attention = attention_of(config, index, net)
        if isinstance(attention, GroupedAttention):
            return structs.replace(attention, mask=masks[index // 2])
        return attention

    patch.setattr(hybrid, "_attention", masked)
    kinds = ["linear_attention", "full_attention"] * len(masks)
    extra = {
        "layer_types": kinds, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }  # fmt: skip
    return make_tiny_checkpoint(folder, "qwen3_5", layers=len(kinds), extra=extra)
