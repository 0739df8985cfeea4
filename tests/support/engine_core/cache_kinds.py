"""The kinds of caches whose pages engines exchange, each with a tiny model of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atom.speculative_config import SpeculativeConfig
from tests.support.models.masked_hybrid import make_masked_hybrid
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

_DRAFTS = SpeculativeConfig(num_tokens=3, fewest_matched=1, most_matched=3, adaptive=False)
_FP8 = {"kv_cache_dtype": "fp8"}


@dataclass(frozen=True)
class Kind:
    """options: of the engine; masks: of a hybrid's layers with attention."""

    architecture: Architecture
    options: dict[str, Any] = field(default_factory=dict)
    masks: str = ""

    def checkpoint(self, folder: Path, patch: pytest.MonkeyPatch) -> Path:
        if self.masks:
            return make_masked_hybrid(folder, self.masks, patch)
        return make_tiny_checkpoint(folder, self.architecture)


KINDS = {
    "dense": Kind("qwen3"),
    "dense, fp8": Kind("llama", _FP8),
    "windows": Kind("gemma3"),
    "windows, fp8": Kind("gpt_oss", _FP8),
    "chunks of attention": Kind("llama4"),
    "layers that share keys": Kind("gemma4"),
    "mla": Kind("deepseek3"),
    "mla with an indexer": Kind("deepseek32"),
    "compressed entries": Kind("deepseek4"),
    "states of a delta rule": Kind("qwen3_next"),
    "states of a convolution": Kind("lfm2"),
    "states beside windows": Kind("qwen3_5", masks="windows before dense"),
    "states beside chunks": Kind("qwen3_5", masks="chunks"),
    "states beside windows, fp8": Kind("qwen3_5", _FP8, masks="beside dense"),
    "chunked prompts": Kind("qwen3", {"max_num_batched_tokens": 24}),
    "little memory": Kind("qwen3", {"num_kv_blocks": 20, "max_model_len": 128}),
    "drafts": Kind("qwen3", {"speculative": _DRAFTS}),
    "states beside windows, drafts": Kind(
        "qwen3_5", {"speculative": _DRAFTS}, masks="windows alone"
    ),
    "reproducible": Kind("qwen3", {"reproducible": True}),
}
