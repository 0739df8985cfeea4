"""The kernels of prompts with images: with the constants of real shapes."""

from __future__ import annotations

from typing import Any

from atom.model_ops.backends.triton_ops import rotate_heads
from atom.model_ops.backends.triton_ops.attention import prefill

Constants = dict[str, Any]

# Gemma 3's heads, and those of Qwen3-VL-8B's encoder.
IMAGE_CASES: list[tuple[str, Any, Constants, Constants]] = [
    ("prefill of images", prefill._prefill_kernel,
     {"HKV": 4, "D": 256, "GROUP": 2, "BLOCK_SIZE": 16, "WINDOW": 1024, "IN_CHUNKS": False,
      "SOFTCAP": 0.0, "sinks_ptr": None, "BLOCK_M": 64, "BLOCK_N": 32,
      "k_scale_ptr": None, "v_scale_ptr": None},
     {"num_warps": 4, "types": {"last_seen_ptr": "*i32"}}),
    ("rotate heads", rotate_heads._rotate_heads_kernel,
     {"COUNT": 32, "D": 72, "TOKENS": 4, "HEADS": 8},
     {"types": {"cos_ptr": "*fp32", "sin_ptr": "*fp32"}}),
]  # fmt: skip
