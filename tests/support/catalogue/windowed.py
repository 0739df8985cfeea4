"""Models with sliding windows: their layers keep the newest tokens only, the others every token."""

from __future__ import annotations

from tests.support.catalogue.case import Case


def _mxfp4(rows: int, columns: int) -> int:
    """Half a byte per element, and a byte for 32 inputs of an output."""
    return rows * columns // 2 + rows * -(-columns // 32)


def _gpt_oss(layers: int, experts: int, ranks: int) -> int:
    """64 heads of 64, 8 KV heads, biases everywhere, a sink per head; experts of 2880 in MXFP4."""
    heads, kv_heads, width = 64 // ranks, max(1, 8 // ranks), 2880 // ranks
    attention = (
        2 * 2880 * heads * 64  # q, o
        + 2 * 2880 * kv_heads * 64  # k, v
        + (heads + 2 * kv_heads) * 64  # their biases
        + 2880  # that of o
        + heads  # sinks
    )
    expert = 2 * _mxfp4(width, 2880) + _mxfp4(2880, width) + 2 * (2 * width + 2880)
    router = experts * 2880 + experts
    layer = 2 * (attention + router + 2 * 2880) + experts * expert
    return 2 * 2 * 201088 // ranks * 2880 + layers * layer + 2 * 2880


def _gemma(hidden: int, layers: int, heads: int, kv_heads: int, head: int, mlp: int) -> int:
    """Gemma 2: tied vocabulary of 256000, four norms."""
    layer = 2 * hidden * heads * head + 2 * hidden * kv_heads * head + 3 * hidden * mlp
    return 2 * (256000 * hidden + layers * (layer + 4 * hidden) + hidden)


def _gemma3(hidden: int, layers: int, heads: int, kv_heads: int, head: int, mlp: int) -> int:
    """The text part of Gemma 3: tied vocabulary of 262208, four norms, norms of q and k."""
    layer = 2 * hidden * heads * head + 2 * hidden * kv_heads * head + 3 * hidden * mlp
    return 2 * (262208 * hidden + layers * (layer + 4 * hidden + 2 * head) + hidden)


def _gemma4(shape: tuple[int, int, int, int, int, int], mlp: int, experts: int = 0) -> int:
    """The text part of Gemma 4: tied vocabulary of 262144, four norms, norms of q and k, a factor
    of each layer. Of six layers five slide, with heads of 256, and one has heads of 512, fewer of
    them for keys, which are its values. With experts of 704: three norms more, a router with a
    scale of each input and of each expert."""
    hidden, layers, heads, kv_heads, full_kv_heads, ranks = shape
    heads, mlp, width = heads // ranks, mlp // ranks, 704 // ranks
    plain = 3 * hidden * mlp + 4 * hidden + 1
    if experts:
        plain += experts * (3 * hidden * width + hidden + 1) + (3 + 1) * hidden
    sliding = 2 * hidden * 256 * (heads + kv_heads // ranks) + 2 * 256
    full = hidden * 512 * (2 * heads + full_kv_heads // ranks) + 2 * 512
    attention = layers // 6 * (5 * sliding + full)
    return 2 * (262144 // ranks * hidden + layers * plain + attention + hidden)


def _llama4(experts: int, mixtures: int, ranks: int) -> int:
    """48 layers of 40 heads of 128, 8 KV heads; `mixtures` with experts of 8192 and a shared one,
    the others dense with 16384; a vocabulary of 202048 and a head of its own."""
    attention = 2 * 5120 * (40 + 8) // ranks * 128
    mixture = experts * 5120 + (experts + 1) * 3 * 5120 * 8192 // ranks
    dense = 3 * 5120 * 16384 // ranks
    layers = 48 * (attention + 2 * 5120) + mixtures * mixture + (48 - mixtures) * dense
    return 2 * (2 * 202048 // ranks * 5120 + layers + 5120)


# 12 of 48 layers keep every token, 36 a chunk as a window of its size; 8 heads of 128
_LLAMA4_CACHE = {
    "kv_token": {1: 2 * 12 * 8 * 128 * 2, 8: 2 * 12 * 1 * 128 * 2},
    "window": {1: 2 * 36 * 8 * 128 * 2, 8: 2 * 36 * 1 * 128 * 2},
}
OLMO3_7B = Case(
    # 24 of 32 layers slide; norms over all 32 heads of queries, and of keys
    weights={
        1: 2
        * (
            2 * 100278 * 4096
            + 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096 + 2 * 4096)
            + 4096
        )
    },
    kv_token={1: 2 * 8 * 32 * 128 * 2, 8: 2 * 8 * 4 * 128 * 2},
    window={1: 2 * 24 * 32 * 128 * 2, 8: 2 * 24 * 4 * 128 * 2},
    window_tokens=4096,
)
WINDOWED: dict[str, Case] = {
    "hf://allenai/Olmo-3-7B-Instruct": OLMO3_7B,
    "hf://allenai/Olmo-3-7B-Think": OLMO3_7B,
    "hf://LGAI-EXAONE/EXAONE-4.0-32B": Case(
        # 48 of 64 layers slide; norms of each head
        weights={
            1: 2
            * (
                2 * 102400 * 5120
                + 64 * (2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 27392 + 2 * 5120 + 2 * 128)
                + 5120
            )
        },
        kv_token={1: 2 * 16 * 8 * 128 * 2, 8: 2 * 16 * 1 * 128 * 2},
        window={1: 2 * 48 * 8 * 128 * 2, 8: 2 * 48 * 1 * 128 * 2},
        window_tokens=4096,
    ),
    "hf://microsoft/Phi-3-mini-4k-instruct": Case(
        # 32 heads of 96, each with its own keys and values; every layer slides
        weights={
            1: 2 * (2 * 32064 * 3072 + 32 * (4 * 3072 * 3072 + 3 * 3072 * 8192 + 2 * 3072) + 3072)
        },
        kv_token={1: 0},
        window={1: 2 * 32 * 32 * 96 * 2, 8: 2 * 32 * 4 * 96 * 2},
        window_tokens=2047,
    ),
    **dict.fromkeys(
        ["hf://meta-llama/Llama-4-Scout-17B-16E", "hf://meta-llama/Llama-4-Scout-17B-16E-Instruct"],
        Case(
            weights={1: _llama4(16, 48, 1), 8: _llama4(16, 48, 8)},
            window_tokens=8192,
            **_LLAMA4_CACHE,
        ),
    ),
    **dict.fromkeys(
        [
            "hf://meta-llama/Llama-4-Maverick-17B-128E",
            "hf://meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        ],
        Case(
            weights={1: _llama4(128, 24, 1), 8: _llama4(128, 24, 8)},
            window_tokens=8192,
            **_LLAMA4_CACHE,
        ),
    ),
    "hf://openai/gpt-oss-20b": Case(
        weights={1: _gpt_oss(24, 32, 1), 8: _gpt_oss(24, 32, 8)},
        # 12 of 24 layers keep every token: K and V of 8 heads of 64
        kv_token={1: 2 * 12 * 8 * 64 * 2, 8: 2 * 12 * 1 * 64 * 2},
        fp8_token={1: 2 * 12 * 8 * (64 + 4)},
        window={1: 2 * 12 * 8 * 64 * 2, 8: 2 * 12 * 1 * 64 * 2},
        window_tokens=128,
    ),
    "hf://openai/gpt-oss-120b": Case(
        weights={1: _gpt_oss(36, 128, 1), 2: _gpt_oss(36, 128, 2)},
        expert_weights={
            # 64 whole experts; attention and vocabulary as above
            2: _gpt_oss(36, 128, 2)
            - 36 * 128 * (2 * _mxfp4(1440, 2880) + _mxfp4(2880, 1440) + 2 * (2 * 1440 + 2880))
            + 36 * 64 * (2 * _mxfp4(2880, 2880) + _mxfp4(2880, 2880) + 2 * (2 * 2880 + 2880))
        },
        kv_token={1: 36_864, 2: 18_432},  # 2 x 18 layers x 8 x 64 x 2
        window={1: 36_864, 2: 18_432},
        window_tokens=128,
    ),
    **dict.fromkeys(
        ["hf://mistralai/Mistral-7B-v0.1", "hf://mistralai/Mistral-7B-Instruct-v0.1"],
        Case(
            weights={
                1: 2
                * (
                    2 * 32000 * 4096
                    + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
                    + 4096
                )
            },
            kv_token={1: 0},  # every layer slides
            window={1: 2 * 32 * 8 * 128 * 2, 8: 2 * 32 * 1 * 128 * 2},
            window_tokens=4096,
        ),
    ),
    **dict.fromkeys(
        ["hf://google/gemma-2-2b", "hf://google/gemma-2-2b-it"],
        Case(
            weights={1: _gemma(2304, 26, 8, 4, 256, 9216)},
            kv_token={1: 2 * 13 * 4 * 256 * 2},
            window={1: 2 * 13 * 4 * 256 * 2},
            window_tokens=4096,
        ),
    ),
    **dict.fromkeys(
        ["hf://google/gemma-2-9b", "hf://google/gemma-2-9b-it"],
        Case(
            weights={1: _gemma(3584, 42, 16, 8, 256, 14336)},
            kv_token={1: 2 * 21 * 8 * 256 * 2},
            window={1: 2 * 21 * 8 * 256 * 2},
            window_tokens=4096,
        ),
    ),
    **dict.fromkeys(
        ["hf://google/gemma-2-27b", "hf://google/gemma-2-27b-it"],
        Case(
            weights={1: _gemma(4608, 46, 32, 16, 128, 36864)},
            kv_token={1: 2 * 23 * 16 * 128 * 2, 16: 2 * 23 * 1 * 128 * 2},
            window={1: 2 * 23 * 16 * 128 * 2, 16: 2 * 23 * 1 * 128 * 2},
            window_tokens=4096,
        ),
    ),
    "hf://google/gemma-3-1b-it": Case(
        # 4 heads and one KV head of 256, with norms of them; tied vocabulary of 262144
        weights={
            1: 2
            * (
                262144 * 1152
                + 26 * (2 * 1152 * 1024 + 2 * 1152 * 256 + 3 * 1152 * 6912 + 4 * 1152 + 2 * 256)
                + 1152
            )
        },
        # layers 6, 12, 18 and 24 of 26 attend in full
        kv_token={1: 2 * 4 * 1 * 256 * 2, 4: 2 * 4 * 1 * 256 * 2},
        window={1: 2 * 22 * 1 * 256 * 2},
        window_tokens=512,
        # groups of 4 as the layers in full: 22 layers in 6 of them leave two places
        padding_bytes=2 * 2 * 1 * 256 * 2,
    ),
    **{
        f"hf://google/gemma-3-{size}-it": Case(
            weights={1: _gemma3(*shape)},
            kv_token={1: 2 * full * kv * head * 2},
            window={1: 2 * (layers - full) * kv * head * 2},
            window_tokens=1024,
            padding_bytes=2 * places * kv * head * 2,
        )
        for size, shape, full, places in (
            # five of six layers slide; groups as large as the layers in full leave some places
            ("4b", (2560, 34, 8, 4, 256, 10240), 5, 1),
            ("12b", (3840, 48, 16, 8, 256, 15360), 8, 0),
            ("27b", (5376, 62, 32, 16, 128, 21504), 10, 8),
        )
        for _, layers, _, kv, head, _ in (shape,)
    },
    "hf://google/gemma-4-31B-it": Case(
        weights={
            1: _gemma4((5376, 60, 32, 16, 4, 1), 21504),
            2: _gemma4((5376, 60, 32, 16, 4, 2), 21504),
        },
        # a block has room for 8 of 50 layers that slide, in 7 groups, or for the 10 others
        kv_token={1: 8 * 2 * 16 * 256 * 2, 8: 10 * 2 * 1 * 512 * 2},
        window={1: 50 * 2 * 16 * 256 * 2},
        window_tokens=1024,
        padding_bytes=6 * 2 * 16 * 256 * 2,
    ),
    "hf://google/gemma-4-26B-A4B-it": Case(
        weights={
            1: _gemma4((2816, 30, 16, 8, 2, 1), 2112, experts=128),
            2: _gemma4((2816, 30, 16, 8, 2, 2), 2112, experts=128),
        },
        # a block has room for 4 of 25 layers that slide, in 7 groups, or for the 5 others
        kv_token={1: 4 * 2 * 8 * 256 * 2, 8: 5 * 2 * 1 * 512 * 2},
        window={1: 25 * 2 * 8 * 256 * 2},
        window_tokens=1024,
        padding_bytes=3 * 2 * 8 * 256 * 2,
    ),
}
