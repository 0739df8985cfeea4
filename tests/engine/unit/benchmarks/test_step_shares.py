"""A profiled step's kernels find their parts by order, whatever kernel computes a product."""

from __future__ import annotations

import pytest

from benchmarks.measures.step_shares import Kernel, shares

LAYER = (
    "_rms_norm_kernel", "nvjet_sm90_tst_64x64", "_decode_kernel", "_combine_kernel",
    "_split_k_kernel", "_rms_norm_kernel", "nvjet_sm90_tst_128x64_splitK", "splitKreduce_kernel",
    "_act_and_mul_kernel", "_split_k_kernel",
)  # fmt: skip
STEP = ("_receive_kernel", "_prepare_kernel", *LAYER, *LAYER, "_rms_norm_kernel", "_dot_kernel",
        "_score_kernel", "_pick_kernel", "_commit_kernel")  # fmt: skip


def in_turn(names: tuple[str, ...], each: float = 2.0, gap: float = 0.5) -> list[Kernel]:
    return [Kernel(name, i * (each + gap), i * (each + gap) + each) for i, name in enumerate(names)]


def test_every_product_of_a_layer_and_the_head_have_their_own_share() -> None:
    found = shares(in_turn(STEP * 3))
    assert found == pytest.approx(
        {
            "inputs and copies": 3 * 2 * 2,
            "norm": 3 * 5 * 2,
            "qkv": 3 * 2 * 2,
            "attention": 3 * 4 * 2,
            "o": 3 * 2 * 2,
            "gate and up": 3 * 4 * 2,  # with what ends the split product
            "activation": 3 * 2 * 2,
            "down": 3 * 2 * 2,
            "head": 3 * 2,
            "sampling": 3 * 3 * 2,
            "idle": 0.5 * (3 * len(STEP) - 1),
        }
    )


def test_kernels_that_overlap_leave_nothing_idle() -> None:
    found = shares([Kernel("a", 0, 10), Kernel("b", 2, 4), Kernel("c", 9, 12), Kernel("d", 13, 14)])
    assert found["idle"] == 1
