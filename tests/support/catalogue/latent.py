"""Multi-head latent attention: a token is one row of 512 + 64 elements in every layer, for all
heads and so on every device. In fp8 it has no scales of its own."""

from __future__ import annotations

from tests.support.catalogue.case import Case, fp8


def _attention(heads: int, ranks: int, hidden: int) -> int:
    """fp8: q_a and kv_a whole on every device, the others divided by heads (192 = 128 + 64 wide
    queries, 256 = 128 + 128 for keys and values, which are multiplied with in halves and so are
    bfloat16 however they come); the norms of the ranks 1536 and 512."""
    own = heads // ranks
    return (
        fp8(1536, hidden)
        + fp8(own * 192, 1536)
        + fp8(576, hidden)
        + 2 * own * 256 * 512
        + fp8(hidden, own * 128)
        + 2 * (1536 + 512)
    )


def _experts(count: int, ranks: int) -> int:
    """`count` experts of 2048 and a shared one, divided; the router and its correction are not."""
    width = 2048 // ranks
    one = 2 * fp8(width, 7168) + fp8(7168, width)
    return (count + 1) * one + 2 * count * 7168 + 4 * count


def _deepseek_v3(ranks: int, indexer: int = 0) -> int:
    dense = 2 * fp8(18432 // ranks, 7168) + fp8(7168, 18432 // ranks)
    return (
        2 * 2 * 129280 // ranks * 7168
        + 61 * (_attention(128, ranks, 7168) + 2 * 2 * 7168 + indexer)
        + 3 * dense
        + 58 * _experts(256, ranks)
        + 2 * 7168
    )


def _draft(ranks: int) -> int:
    """One more layer with experts; what joins hidden state and embedding is bfloat16."""
    layer = _attention(128, ranks, 7168) + 2 * 2 * 7168 + _experts(256, ranks)
    return layer + 2 * (2 * 7168 * 7168 + 3 * 7168)


def _whole_experts(ranks: int) -> int:
    """256 / ranks whole experts on each device; the shared one is divided."""
    dense, shared = 18432 // ranks, 2048 // ranks
    return (
        2 * 2 * 129280 // ranks * 7168
        + 61 * (_attention(128, ranks, 7168) + 2 * 2 * 7168)
        + 3 * (2 * fp8(dense, 7168) + fp8(7168, dense))
        + 58
        * (
            256 // ranks * (2 * fp8(2048, 7168) + fp8(7168, 2048))
            + 2 * fp8(shared, 7168)
            + fp8(7168, shared)
            + 2 * 256 * 7168
            + 4 * 256
        )
        + 2 * 7168
    )


DEEPSEEK_V3 = Case(
    weights={1: _deepseek_v3(1), 8: _deepseek_v3(8)},
    expert_weights={8: _whole_experts(8), 16: _whole_experts(16)},
    kv_token={1: 61 * 576 * 2, 2: 61 * 576 * 2, 8: 61 * 576 * 2},  # 70,272
    # the latent with its scale, and a rotated key of 64 in bfloat16
    fp8_token={1: 61 * 644, 8: 61 * 644},
    draft_weights={1: _draft(1), 8: _draft(8)},
    draft_token={1: 62 * 576 * 2, 8: 62 * 576 * 2},
)
# wq_b 8192 x 1536, wk 128 x 7168, weights_proj 64 x 7168 (never quantised), a LayerNorm of 128 with
# its bias
_INDEXER = fp8(64 * 128, 1536) + fp8(128, 7168) + 2 * 64 * 7168 + 2 * 2 * 128


def _kimi_k2(ranks: int) -> int:
    """64 heads, 384 experts, one layer without."""
    dense = 2 * fp8(18432 // ranks, 7168) + fp8(7168, 18432 // ranks)
    return (
        2 * 2 * 163840 // ranks * 7168
        + 61 * (_attention(64, ranks, 7168) + 2 * 2 * 7168)
        + dense
        + 60 * _experts(384, ranks)
        + 2 * 7168
    )


KIMI_K2 = Case(
    weights={1: _kimi_k2(1), 8: _kimi_k2(8), 16: _kimi_k2(16)},
    kv_token={1: 61 * 576 * 2, 16: 61 * 576 * 2},
    fp8_token={16: 61 * 644},
)


def _kimi_k25(ranks: int) -> int:
    """As K2, but experts alone are quantised: half a byte per element and two for 32 of them. The
    image encoder is whole on every device."""
    heads, width = 64 // ranks, 2048 // ranks
    attention = (
        1536 * 7168
        + heads * 192 * 1536
        + 576 * 7168
        + heads * 256 * 512
        + 7168 * heads * 128
        + (1536 + 512)
        + 2 * 7168
    )
    experts = 384 * 3 * 7168 * width
    plain = (
        2 * 163840 // ranks * 7168
        + 61 * attention
        + 3 * 7168 * 18432 // ranks
        + 60 * (3 * 7168 * width + 384 * 7168)
        + 7168
        + _MOONVIT
    )
    return 2 * plain + 60 * (experts // 2 + 2 * experts // 32 + 4 * 384)


# 27 layers of 1152 and 4304 with biases and two norms; 64 x 64 positions, patches of 3 x 14 x 14;
# a final norm. Four tokens are joined: a norm of 1152, 4608 x 4608 and 4608 x 7168 with biases.
_MOONVIT = (
    27 * (4 * 1152 * 1152 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152)
    + (3 * 14 * 14 + 1) * 1152
    + 64 * 64 * 1152
    + 2 * 1152
    + (2 * 1152 + 4608 * 4608 + 4608 + 4608 * 7168 + 7168)
)
LATENT: dict[str, Case] = {
    "hf://zai-org/GLM-4.7-Flash": Case(
        # 20 heads of 192 + 64, values of 256; one dense layer, 46 of 64 experts and a shared one
        weights={
            1: 2
            * (
                2 * 154880 * 2048
                + 47
                * (
                    768 * 2048
                    + 20 * 256 * 768
                    + 576 * 2048
                    + 20 * (192 + 256) * 512
                    + 2048 * 20 * 256
                    + 768
                    + 512
                    + 2 * 2048
                )
                + 3 * 2048 * 10240
                + 46 * (64 * 2048 + (64 + 1) * 3 * 2048 * 1536)
                + 2048
            )
            + 46 * 64 * 4
        },
        kv_token={1: 47 * 576 * 2, 8: 47 * 576 * 2},
    ),
    "hf://zai-org/GLM-5": Case(
        # 64 heads; an indexer of 32 heads of 128 in every layer, whose keys go through a LayerNorm
        weights={
            1: 2
            * (
                2 * 154880 * 6144
                + 78
                * (
                    2048 * 6144
                    + 64 * 256 * 2048
                    + 576 * 6144
                    + 64 * (192 + 256) * 512
                    + 6144 * 64 * 256
                    + 32 * 128 * 2048
                    + 128 * 6144
                    + 32 * 6144
                    + 2 * 128
                    + 2048
                    + 512
                    + 2 * 6144
                )
                + 3 * 3 * 6144 * 12288
                + 75 * (256 * 6144 + (256 + 1) * 3 * 6144 * 2048)
                + 6144
            )
            + 75 * 256 * 4
        },
        kv_token={1: 78 * (576 + 128) * 2, 8: 78 * (576 + 128) * 2},
    ),
    **dict.fromkeys(
        [
            "hf://deepseek-ai/DeepSeek-V3",
            "hf://deepseek-ai/DeepSeek-V3-0324",
            "hf://deepseek-ai/DeepSeek-R1",
            "hf://deepseek-ai/DeepSeek-R1-0528",
        ],
        DEEPSEEK_V3,
    ),
    "hf://deepseek-ai/DeepSeek-V3.2-Exp": Case(
        weights={1: _deepseek_v3(1, _INDEXER), 8: _deepseek_v3(8, _INDEXER)},
        # the indexer's key of 128; in fp8 with a scale
        kv_token={1: 61 * (576 + 128) * 2, 8: 61 * (576 + 128) * 2},
        fp8_token={8: 61 * (644 + 132)},
    ),
    **dict.fromkeys(
        ["hf://deepseek-ai/DeepSeek-V2", "hf://deepseek-ai/DeepSeek-V2-Chat"],
        Case(
            # 128 heads; 160 experts of 1536 and two shared, one layer with an MLP of 12288
            weights={
                1: 2
                * (
                    2 * 102400 * 5120
                    + 60
                    * (
                        5120 * 1536
                        + 1536 * 128 * 192
                        + 5120 * 576
                        + 512 * 128 * 256
                        + 128 * 128 * 5120
                        + 1536
                        + 512
                        + 2 * 5120
                    )
                    + 3 * 5120 * 12288
                    + 59 * (160 * 5120 + 162 * 3 * 5120 * 1536)
                    + 5120
                )
            },
            kv_token={1: 60 * 576 * 2, 8: 60 * 576 * 2},
        ),
    ),
    **dict.fromkeys(
        ["hf://deepseek-ai/DeepSeek-V2-Lite", "hf://deepseek-ai/DeepSeek-V2-Lite-Chat"],
        Case(
            # queries are not compressed: q 2048 x (16 x 192)
            weights={
                1: 2
                * (
                    2 * 102400 * 2048
                    + 27
                    * (
                        2048 * 16 * 192
                        + 2048 * 576
                        + 512 * 16 * 256
                        + 16 * 128 * 2048
                        + 512
                        + 2 * 2048
                    )
                    + 3 * 2048 * 10944
                    + 26 * (64 * 2048 + 66 * 3 * 2048 * 1408)
                    + 2048
                ),
                2: 2
                * (
                    2 * 51200 * 2048
                    + 27
                    * (
                        2048 * 8 * 192
                        + 2048 * 576  # as large on every device
                        + 512 * 8 * 256
                        + 8 * 128 * 2048
                        + 512
                        + 2 * 2048
                    )
                    + 3 * 2048 * 5472
                    + 26 * (64 * 2048 + 66 * 3 * 2048 * 704)
                    + 2048
                ),
            },
            kv_token={1: 27 * 576 * 2, 2: 27 * 576 * 2, 8: 27 * 576 * 2},
        ),
    ),
    "hf://moonshotai/Kimi-K2.5": Case(
        weights={1: _kimi_k25(1), 8: _kimi_k25(8)},
        kv_token={1: 61 * 576 * 2, 8: 61 * 576 * 2},
        fp8_token={8: 61 * 644},
    ),
    "hf://moonshotai/Kimi-K2-Base": KIMI_K2,
    "hf://moonshotai/Kimi-K2-Instruct": KIMI_K2,
    "hf://moonshotai/Kimi-K2-Instruct-0905": KIMI_K2,
}
