"""Models of which some layers keep a state of a sequence: Qwen3-Next, LFM2.

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


def _lfm2(hidden: int, width: int, ranks: int) -> int:
    """16 layers, of which 6 attend with heads of 64 and 8 KV heads; head and embedding are one."""
    mlp = 3 * hidden * width
    attention = hidden * (2 * hidden + 2 * 8 * 64)
    convolution = 4 * hidden * hidden + 3 * hidden
    divided = 65536 * hidden + 16 * mlp + 6 * attention + 10 * convolution
    return 2 * (divided // ranks + 16 * 2 * hidden + 6 * 2 * 64 + hidden)


def _lfm2_moe(ranks: int) -> int:
    """24 layers of hidden size 2048, of which 6 attend; 32 experts in all but the first two."""
    attention = 2048 * (2 * 2048 + 2 * 8 * 64)
    convolution = 4 * 2048 * 2048 + 3 * 2048
    mlps = 2 * 3 * 2048 * 7168 + 22 * 32 * 3 * 2048 * 1792
    divided = 65536 * 2048 + mlps + 6 * attention + 18 * convolution
    whole = 22 * 32 * 2048 + 24 * 2 * 2048 + 6 * 2 * 64 + 2048
    return 2 * (divided // ranks + whole) + 22 * 32 * 4


_LFM2_TOKEN = 6 * 2 * 8 * 64 * 2
_TOKEN = 2 * 12 * 256 * 2  # bytes of each KV head
HYBRID: dict[str, Case] = {
    f"hf://Qwen/Qwen3-Next-80B-A3B-{kind}": Case(
        weights={1: _qwen3_next(1), 8: _qwen3_next(8)},
        kv_token={1: 2 * _TOKEN, 8: _TOKEN},
        fp8_token={1: 2 * 2 * 12 * (256 + 4)},
    )
    for kind in ("Instruct", "Thinking")
} | {
    f"hf://LiquidAI/LFM2-{name}": Case(
        weights={1: _lfm2(hidden, width, 1), 2: _lfm2(hidden, width, 2)},
        kv_token={1: _LFM2_TOKEN, 2: _LFM2_TOKEN // 2},
    )
    for name, hidden, width in (
        ("350M", 1024, 4608), ("700M", 1536, 6912), ("1.2B", 2048, 8192),
    )
} | {
    "hf://LiquidAI/LFM2-8B-A1B": Case(
        weights={1: _lfm2_moe(1), 4: _lfm2_moe(4)},
        kv_token={1: _LFM2_TOKEN, 4: _LFM2_TOKEN // 4},
    )
}  # fmt: skip
