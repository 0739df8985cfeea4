"""Models of which some layers keep a state of a sequence: Qwen3-Next, LFM2, Granite 4,
Nemotron-H, Kimi Linear.

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


def _mamba(hidden: int, heads: int, size: int, groups: int, ranks: int) -> tuple[int, int]:
    """Elements of a mixer on a rank whose groups keep 128 of a token, and those in float32."""
    own, keys = heads // ranks * size, max(1, groups // ranks) * 128
    projections = hidden * (2 * own + 2 * keys + heads // ranks) + own * hidden
    return projections + (own + 2 * keys) * (4 + 1) + own, 3 * heads // ranks


def _granite(hidden: int, heads: int, mlp: int, ranks: int) -> int:
    """36 mixers and 4 layers that attend; a head keeps hidden / heads elements, a mixer's 64. mlp:
    elements of a layer's MLPs that are divided, and of its router."""
    mixer, floats = _mamba(hidden, hidden * 2 // 64, 64, 1, ranks)
    kv_heads = 8 if heads == 32 else 4
    attention = (2 * hidden * hidden + 2 * hidden * kv_heads * hidden // heads) // ranks
    layers = 36 * mixer + 4 * attention + 40 * (mlp + 2 * hidden)
    return 2 * (100352 * hidden // ranks + layers + hidden) + 36 * floats * 4


def _granite_experts(hidden: int, count: int, width: int, shared: int, ranks: int) -> int:
    return 3 * hidden * (count * width + shared) // ranks + count * hidden


def _nemotron_9b(ranks: int) -> int:
    """27 mixers, 4 layers that attend with 40 heads of 128 and 8 KV heads, and 25 MLPs."""
    mixer, floats = _mamba(4480, 128, 80, 8, ranks)
    attention = 4480 * 128 * 2 * (40 + 8)
    divided = 2 * 131072 * 4480 + 4 * attention + 25 * 2 * 4480 * 15680
    return 2 * (divided // ranks + 27 * mixer + (56 + 1) * 4480) + 27 * floats * 4


def _nemotron_30b(ranks: int) -> int:
    """23 mixers, 6 layers that attend with 32 heads and 2 KV heads, and 128 experts in 23 layers
    beside one for all tokens."""
    mixer, floats = _mamba(2688, 64, 64, 8, ranks)
    attention = 2688 * 128 * 2 * (32 // ranks + max(1, 2 // ranks))
    divided = 2 * 131072 * 2688 + 23 * 2 * 2688 * (128 * 1856 + 3712)
    whole = 23 * 128 * 2688 + (52 + 1) * 2688
    elements = divided // ranks + whole + 6 * attention + 23 * mixer
    return 2 * elements + 4 * (23 * floats + 23 * 128)


def _kimi_linear(ranks: int) -> int:
    """20 layers of delta attention with 32 heads of 128, 7 of latents, 256 experts behind the first
    layer, which is dense."""
    heads = 32 * 128
    delta = 2304 * (3 * heads + 32) + 2 * 128 * heads + heads * 2304 + 3 * heads * 4
    delta_whole = 2 * 2304 * 128 + 128
    latent = 2304 * 32 * 192 + 512 * 32 * 256 + 32 * 128 * 2304
    latent_whole = 2304 * 576 + 512
    mlps = 3 * 2304 * 9216 + 26 * 257 * 3 * 2304 * 1024
    divided = 2 * 163840 * 2304 + 20 * delta + 7 * latent + mlps
    whole = 20 * delta_whole + 7 * latent_whole + 26 * 256 * 2304 + (27 * 2 + 1) * 2304
    floats = 20 * (32 + heads) // ranks + 26 * 256
    return 2 * (divided // ranks + whole) + 4 * floats


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
} | {
    f"hf://ibm-granite/granite-4.0-h-{name}": Case(
        weights={ranks: _granite(hidden, heads, mlp(ranks), ranks) for ranks in (1, 2)},
        kv_token={ranks: 4 * 2 * kv_heads * hidden // heads * 2 // ranks for ranks in (1, 2)},
    )
    for name, hidden, heads, kv_heads, mlp in (
        ("micro", 2048, 32, 8, lambda ranks: 3 * 2048 * 8192 // ranks),
        ("tiny", 1536, 12, 4, lambda ranks: _granite_experts(1536, 64, 512, 1024, ranks)),
        ("small", 4096, 32, 8, lambda ranks: _granite_experts(4096, 72, 768, 1536, ranks)),
    )
} | {
    "hf://nvidia/NVIDIA-Nemotron-Nano-9B-v2": Case(
        weights={1: _nemotron_9b(1), 4: _nemotron_9b(4)},
        kv_token={1: 4 * 2 * 8 * 128 * 2, 4: 4 * 2 * 2 * 128 * 2},
    ),
    "hf://nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Case(
        weights={1: _nemotron_30b(1), 8: _nemotron_30b(8)},
        kv_token={1: 6 * 2 * 2 * 128 * 2, 8: 6 * 2 * 128 * 2},
    ),
} | {
    f"hf://moonshotai/Kimi-Linear-48B-A3B-{kind}": Case(
        weights={1: _kimi_linear(1), 8: _kimi_linear(8)},
        kv_token={1: 7 * 576 * 2, 8: 7 * 576 * 2},
    )
    for kind in ("Base", "Instruct")
}  # fmt: skip
