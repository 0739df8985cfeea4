"""Dense models in fp8 and int4: matrices with their scales; embedding, head, norms and biases keep
their two bytes."""

from __future__ import annotations

from tests.support.catalogue.case import Case, fp8

QUANTISED: dict[str, Case] = {
    "hf://Qwen/Qwen3-8B-FP8": Case(
        weights={
            1: 2 * (2 * 151936 * 4096 + 36 * (2 * 4096 + 2 * 128) + 4096)
            + 36
            * (
                2 * fp8(4096, 4096)  # q, o
                + 2 * fp8(1024, 4096)  # k, v
                + 3 * fp8(12288, 4096)
            ),
            # on 8 devices a 128-wide KV head is just one block
            8: 2 * (2 * 18992 * 4096 + 36 * (2 * 4096 + 2 * 128) + 4096)
            + 36
            * (
                fp8(512, 4096)
                + fp8(4096, 512)
                + 2 * fp8(128, 4096)
                + 2 * fp8(1536, 4096)
                + fp8(4096, 1536)
            ),
        },
        kv_token={1: 2 * 36 * 8 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-14B-FP8": Case(
        weights={
            1: 2 * (2 * 151936 * 5120 + 40 * (2 * 5120 + 2 * 128) + 5120)
            + 40 * (2 * fp8(5120, 5120) + 2 * fp8(1024, 5120) + 3 * fp8(17408, 5120))
        },
        kv_token={1: 2 * 40 * 8 * 128 * 2},
    ),
    "hf://Qwen/Qwen3-32B-FP8": Case(
        weights={
            1: 2 * (2 * 151936 * 5120 + 64 * (2 * 5120 + 2 * 128) + 5120)
            + 64 * (2 * fp8(8192, 5120) + 2 * fp8(1024, 5120) + 3 * fp8(25600, 5120))
        },
        kv_token={1: 2 * 64 * 8 * 128 * 2},
    ),
    "hf://Qwen/Qwen2.5-7B-Instruct-AWQ": Case(
        # half a byte per element; for 128 inputs of an output a float16 scale and half a byte of
        # zero point: 2.5 / 128 bytes per element
        weights={
            1: 2 * (2 * 152064 * 3584 + 28 * ((28 + 2 * 4) * 128 + 2 * 3584) + 3584)
            + 28
            * (
                (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944)
                * (64 * 2 + 5)  # 128 elements are 64 bytes, and 2.5 of scale and zero point
                // (128 * 2)
            )
        },
        kv_token={1: 2 * 28 * 4 * 128 * 2, 4: 2 * 28 * 1 * 128 * 2},
    ),
    "hf://Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": Case(
        # the same: inputs are in their own order, which needs no list
        weights={
            1: 2 * (2 * 152064 * 3584 + 28 * ((28 + 2 * 4) * 128 + 2 * 3584) + 3584)
            + 28 * ((2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944) * 133 // 256)
        },
        kv_token={1: 2 * 28 * 4 * 128 * 2},
    ),
}
