"""Mixtures of experts with grouped-query attention: Qwen3, GLM and Mixtral.

The router is on every device; without expert parallelism a device has its part of every expert.
"""

from __future__ import annotations

from tests.support.catalogue.case import Case, fp8


def _qwen3_moe(
    hidden: int, layers: int, heads: int, kv_heads: int, experts: int, width: int
) -> int:
    """One device, bfloat16: heads of 128, untied vocabulary of 151936."""
    attention = 2 * hidden * heads * 128 + 2 * hidden * kv_heads * 128 + 2 * 128
    layer = attention + experts * hidden + experts * 3 * hidden * width + 2 * hidden
    return 2 * (2 * 151936 * hidden + layers * layer + hidden)


QWEN3_30B = Case(
    weights={
        1: _qwen3_moe(2048, 48, 32, 4, 128, 768),
        # 8 devices: 4 heads of 128 each, 4 KV heads on pairs of devices, 96 of each expert's 768
        8: 2
        * (
            2 * 18992 * 2048
            + 48
            * (
                2 * 2048 * 512
                + 2 * 2048 * 128
                + 2 * 128
                + 128 * 2048
                + 128 * 3 * 2048 * 96
                + 2 * 2048
            )
            + 2048
        ),
    },
    expert_weights={
        # 16 whole experts of 128: as many bytes
        8: 2
        * (
            2 * 18992 * 2048
            + 48
            * (
                2 * 2048 * 512
                + 2 * 2048 * 128
                + 2 * 128
                + 128 * 2048
                + 16 * 3 * 2048 * 768
                + 2 * 2048
            )
            + 2048
        )
    },
    kv_token={1: 2 * 48 * 4 * 128 * 2, 4: 2 * 48 * 1 * 128 * 2, 8: 2 * 48 * 1 * 128 * 2},
    fp8_token={1: 2 * 48 * 4 * 132, 8: 2 * 48 * 132},
)
QWEN3_235B = Case(
    weights={1: _qwen3_moe(4096, 94, 64, 4, 128, 1536)},
    kv_token={1: 2 * 94 * 4 * 128 * 2, 8: 2 * 94 * 1 * 128 * 2},
)
GLM_45 = Case(
    weights={
        # 96 heads of 128 (wider than the hidden size 5120), biases on q, k and v, norms of 128; 3
        # layers with an MLP of 12288, 89 with 160 experts of 1536, one shared expert, a router and
        # its float32 correction
        1: 2
        * (
            2 * 151552 * 5120
            + 92 * (2 * 5120 * 12288 + 2 * 5120 * 1024 + (96 + 2 * 8) * 128 + 2 * 128 + 2 * 5120)
            + 3 * 3 * 5120 * 12288
            + 89 * (160 * 5120 + 161 * 3 * 5120 * 1536)
            + 5120
        )
        + 89 * 160 * 4,
    },
    draft_weights={
        # one more such layer with experts, 10240 x 5120 to join hidden state and embedding, 3 norms
        1: 2
        * (
            2 * 5120 * 12288
            + 2 * 5120 * 1024
            + (96 + 2 * 8) * 128
            + 2 * 128
            + 2 * 5120
            + 160 * 5120
            + 161 * 3 * 5120 * 1536
            + 2 * 5120 * 5120
            + 3 * 5120
        )
        + 160 * 4
    },
    kv_token={1: 2 * 92 * 8 * 128 * 2, 8: 2 * 92 * 1 * 128 * 2},
    draft_token={1: 2 * 93 * 8 * 128 * 2, 8: 2 * 93 * 1 * 128 * 2},
)
ERNIE_21B = Case(
    # tied; one layer with an MLP of 12288, 27 with 64 experts of 1536, two more for every token, a
    # router and its float32 correction
    weights={
        1: 2
        * (
            103424 * 2560
            + 28 * (2 * 2560 * 2560 + 2 * 2560 * 512 + 2 * 2560)
            + 3 * 2560 * 12288
            + 27 * (64 * 2560 + (64 + 2) * 3 * 2560 * 1536)
            + 2560
        )
        + 27 * 64 * 4
    },
    kv_token={1: 2 * 28 * 4 * 128 * 2, 8: 2 * 28 * 1 * 128 * 2},
)
EXPERTS: dict[str, Case] = {
    "hf://baidu/ERNIE-4.5-21B-A3B-PT": ERNIE_21B,
    "hf://baidu/ERNIE-4.5-21B-A3B-Thinking": ERNIE_21B,
    "hf://MiniMaxAI/MiniMax-M2": Case(
        # 48 heads of 128, norms over all of them, 256 experts of 1536; router and head in 16 bits
        weights={
            1: 2 * (2 * 200064 * 3072 + 62 * (2 * 3072 + (48 + 8) * 128 + 256 * 3072) + 3072)
            + 62 * 256 * 4
            + 62
            * (
                fp8(6144, 3072)
                + 2 * fp8(1024, 3072)
                + fp8(3072, 6144)
                + 256 * (2 * fp8(1536, 3072) + fp8(3072, 1536))
            )
        },
        kv_token={1: 2 * 62 * 8 * 128 * 2, 8: 2 * 62 * 1 * 128 * 2},
    ),
    "hf://tencent/Hunyuan-A13B-Instruct": Case(
        # tied; 64 experts and one for all tokens of 3072, a router, norms of heads of 128
        weights={
            1: 2
            * (
                128167 * 4096
                + 32
                * (
                    2 * 4096 * 4096
                    + 2 * 4096 * 1024
                    + (64 + 1) * 3 * 4096 * 3072
                    + 64 * 4096
                    + 2 * 4096
                    + 2 * 128
                )
                + 4096
            )
        },
        kv_token={1: 2 * 32 * 8 * 128 * 2, 8: 2 * 32 * 1 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-30B-A3B": QWEN3_30B,
    "hf://Qwen/Qwen3-30B-A3B-Instruct-2507": QWEN3_30B,
    "hf://Qwen/Qwen3-30B-A3B-Thinking-2507": QWEN3_30B,
    "hf://Qwen/Qwen3-30B-A3B-FP8": Case(
        weights={
            1: 2 * (2 * 151936 * 2048 + 48 * (2 * 128 + 128 * 2048 + 2 * 2048) + 2048)
            + 48
            * (
                2 * fp8(4096, 2048)
                + 2 * fp8(512, 2048)
                + 128 * (2 * fp8(768, 2048) + fp8(2048, 768))
            )
        },
        kv_token={1: 2 * 48 * 4 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-235B-A22B": QWEN3_235B,
    "hf://Qwen/Qwen3-235B-A22B-Instruct-2507": QWEN3_235B,
    "hf://Qwen/Qwen3-235B-A22B-Thinking-2507": QWEN3_235B,
    "hf://Qwen/Qwen3-235B-A22B-FP8": Case(
        weights={
            1: 2 * (2 * 151936 * 4096 + 94 * (2 * 128 + 128 * 4096 + 2 * 4096) + 4096)
            + 94
            * (
                2 * fp8(8192, 4096)
                + 2 * fp8(512, 4096)
                + 128 * (2 * fp8(1536, 4096) + fp8(4096, 1536))
            )
        },
        kv_token={1: 2 * 94 * 4 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-Coder-480B-A35B-Instruct": Case(
        weights={1: _qwen3_moe(6144, 62, 96, 8, 160, 2560)},
        kv_token={1: 2 * 62 * 8 * 128 * 2, 8: 2 * 62 * 1 * 128 * 2},
    ),
    "hf://zai-org/GLM-4.5": GLM_45,
    "hf://zai-org/GLM-4.6": GLM_45,
    "hf://zai-org/GLM-4.5-Air": Case(
        # no norms of queries and keys; one layer with an MLP of 10944
        weights={
            1: 2
            * (
                2 * 151552 * 4096
                + 46 * (2 * 4096 * 12288 + 2 * 4096 * 1024 + (96 + 2 * 8) * 128 + 2 * 4096)
                + 3 * 4096 * 10944
                + 45 * (128 * 4096 + 129 * 3 * 4096 * 1408)
                + 4096
            )
            + 45 * 128 * 4
        },
        kv_token={1: 2 * 46 * 8 * 128 * 2},
        draft_token={1: 2 * 47 * 8 * 128 * 2},
    ),
    **dict.fromkeys(
        ["hf://mistralai/Mixtral-8x7B-v0.1", "hf://mistralai/Mixtral-8x7B-Instruct-v0.1"],
        Case(
            weights={
                1: 2
                * (
                    2 * 32000 * 4096
                    + 32
                    * (
                        2 * 4096 * 4096
                        + 2 * 4096 * 1024
                        + 8 * 4096
                        + 8 * 3 * 4096 * 14336
                        + 2 * 4096
                    )
                    + 4096
                ),
                2: 2
                * (
                    2 * 16000 * 4096
                    + 32
                    * (2 * 4096 * 2048 + 2 * 4096 * 512 + 8 * 4096 + 8 * 3 * 4096 * 7168 + 2 * 4096)
                    + 4096
                ),
            },
            kv_token={1: 131_072, 2: 65_536},  # 128 KiB, as the reference says
        ),
    ),
    "hf://mistralai/Mixtral-8x22B-v0.1": Case(
        weights={
            1: 2
            * (
                2 * 32000 * 6144
                + 56
                * (2 * 6144 * 6144 + 2 * 6144 * 1024 + 8 * 6144 + 8 * 3 * 6144 * 16384 + 2 * 6144)
                + 6144
            )
        },
        kv_token={1: 2 * 56 * 8 * 128 * 2},
    ),
}
