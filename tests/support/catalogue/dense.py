"""Models whose layers all attend in full and have one MLP. Bytes are of bfloat16 (2)."""

from __future__ import annotations

from tests.support.catalogue.case import Case

QWEN3_8B = Case(
    weights={
        # embedding and head: vocabulary 151936 x 4096, twice; a layer: q and o 4096 x 4096, k and v
        # 4096 x (8 x 128), three MLP matrices 4096 x 12288, two norms of 4096 and two of 128
        1: 2
        * (
            2 * 151936 * 4096
            + 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128)
            + 4096
        ),
        # on 8 devices every matrix an eighth, the norms whole
        8: 2
        * (
            2 * 18992 * 4096
            + 36 * (2 * 4096 * 512 + 2 * 4096 * 128 + 3 * 4096 * 1536 + 2 * 4096 + 2 * 128)
            + 4096
        ),
    },
    # K and V, 36 layers, 8 heads of 128; on 8 devices one head each
    kv_token={1: 2 * 36 * 8 * 128 * 2, 2: 2 * 36 * 4 * 128 * 2, 8: 2 * 36 * 1 * 128 * 2},
    # a byte per element, and 4 for each head's K and V
    fp8_token={1: 2 * 36 * 8 * (128 + 4), 8: 2 * 36 * 1 * (128 + 4)},
)
LLAMA_70B = Case(
    weights={
        1: 2
        * (
            2 * 128256 * 8192
            + 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192)
            + 8192
        ),
        8: 2
        * (
            2 * 16032 * 8192
            + 80 * (2 * 8192 * 1024 + 2 * 8192 * 128 + 3 * 8192 * 3584 + 2 * 8192)
            + 8192
        ),
        # 16 devices, 8 KV heads: k and v do not get smaller, each head is on two devices
        16: 2
        * (
            2 * 8016 * 8192
            + 80 * (2 * 8192 * 512 + 2 * 8192 * 128 + 3 * 8192 * 1792 + 2 * 8192)
            + 8192
        ),
    },
    kv_token={
        1: 2 * 80 * 8 * 128 * 2,  # 327,680: the reference's example without scales
        4: 2 * 80 * 2 * 128 * 2,
        8: 2 * 80 * 1 * 128 * 2,
        16: 2 * 80 * 1 * 128 * 2,
    },
    fp8_token={1: 168_960, 8: 21_120},  # the reference's example
)
SEED_OSS = Case(
    # 80 heads of 128, which is wider than the hidden size; biases of queries, keys and values
    weights={
        1: 2
        * (
            2 * 155136 * 5120
            + 64
            * (
                2 * 5120 * 10240
                + 2 * 5120 * 1024
                + (80 + 2 * 8) * 128
                + 3 * 5120 * 27648
                + 2 * 5120
            )
            + 5120
        )
    },
    kv_token={1: 2 * 64 * 8 * 128 * 2, 8: 2 * 64 * 1 * 128 * 2},
)
SMOLLM3 = Case(
    # tied; 16 heads of 128 with 4 of keys
    weights={
        1: 2
        * (
            128256 * 2048
            + 36 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 11008 + 2 * 2048)
            + 2048
        )
    },
    kv_token={1: 2 * 36 * 4 * 128 * 2, 8: 2 * 36 * 1 * 128 * 2},
)
DENSE: dict[str, Case] = {
    "hf://ByteDance-Seed/Seed-OSS-36B-Instruct": SEED_OSS,
    "hf://ByteDance-Seed/Seed-OSS-36B-Base": SEED_OSS,
    "hf://HuggingFaceTB/SmolLM3-3B": SMOLLM3,
    "hf://HuggingFaceTB/SmolLM3-3B-Base": SMOLLM3,
    "hf://ibm-granite/granite-3.3-8b-instruct": Case(
        # tied
        weights={
            1: 2
            * (
                49159 * 4096
                + 40 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12800 + 2 * 4096)
                + 4096
            )
        },
        kv_token={1: 2 * 40 * 8 * 128 * 2, 8: 2 * 40 * 1 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-8B": QWEN3_8B,
    **dict.fromkeys(
        [
            "hf://meta-llama/Llama-3.3-70B-Instruct",
            "hf://meta-llama/Llama-3.1-70B",
            "hf://meta-llama/Llama-3.1-70B-Instruct",
            "hf://meta-llama/Meta-Llama-3-70B",
            "hf://meta-llama/Meta-Llama-3-70B-Instruct",
        ],
        LLAMA_70B,
    ),
    **dict.fromkeys(
        ["hf://meta-llama/Llama-3.1-405B", "hf://meta-llama/Llama-3.1-405B-Instruct"],
        Case(
            # 128 heads of 128, 8 KV heads: q and o 16384 x 16384, k and v 16384 x 1024
            weights={
                1: 2
                * (
                    2 * 128256 * 16384
                    + 126 * (2 * 16384 * 16384 + 2 * 16384 * 1024 + 3 * 16384 * 53248 + 2 * 16384)
                    + 16384
                ),
                16: 2
                * (
                    2 * 8016 * 16384
                    + 126 * (2 * 16384 * 1024 + 2 * 16384 * 128 + 3 * 16384 * 3328 + 2 * 16384)
                    + 16384
                ),
            },
            kv_token={1: 2 * 126 * 8 * 128 * 2, 16: 2 * 126 * 1 * 128 * 2},
        ),
    ),
    **{
        f"hf://Qwen/Qwen2.5-{size}-Instruct": Case(
            # q, k and v have biases; the embedding is the head too where `tables` is 1
            weights={
                1: 2
                * (
                    tables * vocabulary * hidden
                    + layers
                    * (
                        2 * hidden * heads * head
                        + 2 * hidden * kv_heads * head
                        + (heads + 2 * kv_heads) * head
                        + 3 * hidden * mlp
                        + 2 * hidden
                    )
                    + hidden
                )
            },
            kv_token={1: 2 * layers * kv_heads * head * 2, 2 * kv_heads: 2 * layers * head * 2},
        )
        for size, tables, vocabulary, hidden, layers, heads, kv_heads, head, mlp in (
            ("0.5B", 1, 151936, 896, 24, 14, 2, 64, 4864),
            ("1.5B", 1, 151936, 1536, 28, 12, 2, 128, 8960),
            ("3B", 1, 151936, 2048, 36, 16, 2, 128, 11008),
            ("7B", 2, 152064, 3584, 28, 28, 4, 128, 18944),
            ("14B", 2, 152064, 5120, 48, 40, 8, 128, 13824),
            ("32B", 2, 152064, 5120, 64, 40, 8, 128, 27648),
            ("72B", 2, 152064, 8192, 80, 64, 8, 128, 29568),
        )
    },
    **dict.fromkeys(
        [
            "hf://mistralai/Mistral-Small-24B-Instruct-2501",
        ],
        Case(
            # 32 heads of 128: q and o are 5120 x 4096
            weights={
                1: 2
                * (
                    2 * 131072 * 5120
                    + 40 * (2 * 5120 * 4096 + 2 * 5120 * 1024 + 3 * 5120 * 32768 + 2 * 5120)
                    + 5120
                )
            },
            kv_token={1: 2 * 40 * 8 * 128 * 2},
        ),
    ),
    **dict.fromkeys(
        [
            "hf://mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            "hf://mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        ],
        Case(
            # the same, and an encoder of images: patches of 3 x 14 x 14, 24 layers of four
            # 1024 x 1024 and three 1024 x 4096 with two norms, then a square of four patches
            # merged to 1024, and two matrices of the projector
            weights={
                1: 2
                * (
                    2 * 131072 * 5120
                    + 40 * (2 * 5120 * 4096 + 2 * 5120 * 1024 + 3 * 5120 * 32768 + 2 * 5120)
                    + 5120
                    + 588 * 1024
                    + 1024
                    + 24 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024)
                    + 1024
                    + 4096 * 1024
                    + 1024 * 5120
                    + 5120 * 5120
                )
            },
            kv_token={1: 2 * 40 * 8 * 128 * 2},
        ),
    ),
    **dict.fromkeys(
        ["hf://mistralai/Mistral-7B-v0.3", "hf://mistralai/Mistral-7B-Instruct-v0.3"],
        Case(
            weights={
                1: 2
                * (
                    2 * 32768 * 4096
                    + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
                    + 4096
                )
            },
            kv_token={1: 2 * 32 * 8 * 128 * 2},
        ),
    ),
    "hf://Qwen/Qwen3-0.6B": Case(
        # tied: the embedding is the head too
        weights={
            1: 2
            * (
                151936 * 1024
                + 28 * (2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072 + 2 * 1024 + 2 * 128)
                + 1024
            )
        },
        kv_token={1: 2 * 28 * 8 * 128 * 2, 16: 2 * 28 * 1 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-1.7B": Case(
        weights={
            1: 2
            * (
                151936 * 2048
                + 28 * (2 * 2048 * 2048 + 2 * 2048 * 1024 + 3 * 2048 * 6144 + 2 * 2048 + 2 * 128)
                + 2048
            )
        },
        kv_token={1: 2 * 28 * 8 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-4B": Case(
        # 32 heads of 128 are wider than the hidden size 2560
        weights={
            1: 2
            * (
                151936 * 2560
                + 36 * (2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128)
                + 2560
            )
        },
        kv_token={1: 2 * 36 * 8 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-14B": Case(
        weights={
            1: 2
            * (
                2 * 151936 * 5120
                + 40 * (2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 17408 + 2 * 5120 + 2 * 128)
                + 5120
            )
        },
        kv_token={1: 2 * 40 * 8 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-32B": Case(
        # 64 heads of 128: q and o are 5120 x 8192
        weights={
            1: 2
            * (
                2 * 151936 * 5120
                + 64 * (2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25600 + 2 * 5120 + 2 * 128)
                + 5120
            )
        },
        kv_token={1: 2 * 64 * 8 * 128 * 2},
    ),
    **dict.fromkeys(
        [
            "hf://meta-llama/Llama-3.1-8B",
            "hf://meta-llama/Llama-3.1-8B-Instruct",
            "hf://meta-llama/Meta-Llama-3-8B",
            "hf://meta-llama/Meta-Llama-3-8B-Instruct",
        ],
        Case(
            weights={
                1: 2
                * (
                    2 * 128256 * 4096
                    + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
                    + 4096
                )
            },
            kv_token={1: 2 * 32 * 8 * 128 * 2},
        ),
    ),
    **dict.fromkeys(
        ["hf://meta-llama/Llama-3.2-1B", "hf://meta-llama/Llama-3.2-1B-Instruct"],
        Case(
            # heads of 64
            weights={
                1: 2
                * (
                    128256 * 2048
                    + 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048)
                    + 2048
                )
            },
            kv_token={1: 2 * 16 * 8 * 64 * 2},
        ),
    ),
    **dict.fromkeys(
        ["hf://meta-llama/Llama-3.2-3B", "hf://meta-llama/Llama-3.2-3B-Instruct"],
        Case(
            weights={
                1: 2
                * (
                    128256 * 3072
                    + 28 * (2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072)
                    + 3072
                )
            },
            kv_token={1: 2 * 28 * 8 * 128 * 2},
        ),
    ),
    "hf://microsoft/Phi-4-mini-instruct": Case(
        # tied; 3,836,021,760 parameters
        weights={
            1: 2
            * (
                200064 * 3072
                + 32 * (2 * 3072 * 3072 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072)
                + 3072
            )
        },
        kv_token={1: 2 * 32 * 8 * 128 * 2, 8: 2 * 32 * 1 * 128 * 2},
    ),
    "hf://microsoft/phi-4": Case(
        # 14,659,507,200 parameters, of a checkpoint of 29,319,014,400 bytes
        weights={
            1: 2
            * (
                2 * 100352 * 5120
                + 40 * (2 * 5120 * 5120 + 2 * 5120 * 1280 + 3 * 5120 * 17920 + 2 * 5120)
                + 5120
            )
        },
        kv_token={1: 2 * 40 * 10 * 128 * 2, 2: 2 * 40 * 5 * 128 * 2},
    ),
    "path:///models/atom-tiny": Case(
        weights={
            1: 2
            * (
                2048 * 192
                + 6 * (2 * 192 * 256 + 2 * 192 * 128 + 3 * 192 * 512 + 2 * 192 + 2 * 64)
                + 192
            )
        },
        kv_token={1: 2 * 6 * 2 * 64 * 2, 4: 2 * 6 * 1 * 64 * 2},
    ),
    "path:///models/atom-tiny-eyes": Case(
        # the decoder, the tower over patches of 3 x 8 x 8, and the projector of four patches
        weights={
            1: 2
            * (
                2 * 479 * 128
                + 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 320 + 2 * 128)
                + 128
                + 192 * 96
                + 96
                + 3 * (4 * 96 * 96 + 3 * 96 * 192 + 2 * 96)
                + 96
                + 384 * 96
                + 96 * 128
                + 128 * 128
            )
        },
        kv_token={1: 2 * 4 * 2 * 32 * 2},
    ),
}
