"""Models of which some layers keep a state of a sequence: Qwen3-Next.

What each value head forgets by is float32, everything else bfloat16.
"""

from __future__ import annotations

from tests.support.catalogue.case import Case


def _qwen3_next(ranks: int) -> int:
    """Hidden size 2048, 36 delta nets of 16 key and 32 value heads, and 12 layers that attend."""
    vocabulary = 2 * 151936 * 2048 // ranks
    experts = 512 * 2048 + (512 + 1) * 3 * 2048 * 512 // ranks + 2048
    # Each of 16 heads has a gate as wide as its query; a rank holds a KV head at least.
    heads, kv_heads = 16 // ranks, max(1, 2 // ranks)
    attention = 2048 * 256 * (2 * heads + 2 * kv_heads + heads) + 2 * 256
    channels, values = 2 * 16 * 128 + 32 * 128, 32 * 128
    projections = 2048 * (channels + values + 2 * 32) + values * 2048 + channels * 4
    delta_net = projections // ranks + 128
    float32 = 36 * 2 * 32 // ranks * 4
    layers = 48 * (experts + 2 * 2048) + 12 * attention + 36 * delta_net
    return 2 * (vocabulary + layers + 2048) + float32


_TOKEN = 2 * 12 * 256 * 2  # bytes of each KV head
HYBRID: dict[str, Case] = {
    f"hf://Qwen/Qwen3-Next-80B-A3B-{kind}": Case(
        weights={1: _qwen3_next(1), 8: _qwen3_next(8)},
        kv_token={1: 2 * _TOKEN, 8: _TOKEN},
        fp8_token={1: 2 * 2 * 12 * (256 + 4)},
    )
    for kind in ("Instruct", "Thinking")
}
