"""Mistakes with AITER's kernels of four bits; see aiter_mutations.py."""

from __future__ import annotations

import torch

from tests.support.aiter.aiter_mutations import (
    all_of,
    constant,
    drop,
    put,
    shifted,
    strided,
    swap,
    swapped_halves,
    wider,
)


def shifted_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8).roll(1, -1).view(x.dtype)


def swapped_nibbles(x: torch.Tensor) -> torch.Tensor:
    packed = x.view(torch.uint8)
    return ((packed << 4) | (packed >> 4)).view(x.dtype)


FP4_MUTATIONS = [
    *all_of(
        "mxfp4 product of mxfp4", "gemm_a4w4",
        ("operands swapped", swap("A", "B")),
        ("scales swapped", swap("A_scale", "B_scale")),
        ("scales of other outputs", put("B_scale", shifted_bytes)),
        ("scales of other tokens", put("A_scale", shifted_bytes)),
        ("float32 scales", put("B_scale", wider)),
        ("a bias", put("bias", lambda _: torch.ones(256))),
        ("plain rows", constant("bpreshuffle", False)),
        ("a matrix out of its tiles", put("B", torch.clone)),
        ("nibbles swapped", put("A", swapped_nibbles)),
        ("another dtype", constant("dtype", torch.float16)),
        card="gfx950",
    ),
    *all_of(
        "mxfp4 product of mxfp4", "per_1x32_f4_quant_hip",
        ("scales by rows", constant("shuffle", False)),
        ("eight bits", constant("quant_dtype", torch.float8_e4m3fn)),
        ("strides", put("x", strided)),
        card="gfx950",
    ),
    *all_of(
        "mxfp4 product of mxfp4", "e8m0_shuffle",
        ("scales of other outputs", put("scale", shifted)),
        ("float32 scales", put("scale", wider)),
        card="gfx950",
    ),
    *all_of(
        "clamped experts", "shuffle_weight_a16w4",
        ("gates before ups", constant("gate_up", False)),
        ("other lanes", constant("NLane", 32)),
        card="gfx950",
    ),
    *all_of(
        "clamped experts", "shuffle_scale_a16w4",
        ("gates before ups", constant("gate_up", False)),
        ("one expert", constant("experts_cnt", 1)),
        card="gfx950",
    ),
    *all_of(
        "clamped experts", "fused_moe",
        ("no biases", drop("bias1", "bias2")),
        ("one bias forgotten", drop("bias2")),
        ("biases swapped", swap("bias1", "bias2")),
        ("narrow biases", put("bias1", lambda bias: bias.bfloat16())),
        ("ups' biases before gates'", swapped_halves("bias1", 1)),
        ("gates before ups", constant("gate_mode", "separated")),
        ("no order of gates", drop("gate_mode")),
        ("another clamp", constant("swiglu_limit", 1.0)),
        ("another activation", put("activation", lambda kind: type(kind).Silu)),
        ("scales swapped", swap("w1_scale", "w2_scale")),
        ("scales of others", put("w1_scale", shifted)),
        ("too much padding of inputs", constant("hidden_pad", 384)),
        ("too much padding between", constant("intermediate_pad", 256)),
        ("inputs that are not padded", put("hidden_states", lambda x: x[:, :288].contiguous())),
        ("experts of others", put("topk_ids", lambda ids: (ids + 1) % 3)),
        ("bytes", put("w1", lambda w: w.view(torch.uint8))),
        ("quantised by token", put("quant_type", lambda kind: type(kind).per_Token)),
        card="gfx950",
    ),
    *all_of(
        "mxfp4 experts", "fused_moe",
        ("gates in turn", constant("gate_mode", "interleave")),
        ("biases", put("bias1", lambda _: torch.ones(3, 512))),
        ("up before gate", swapped_halves("w1", 1)),
        ("scales of others", put("w2_scale", shifted)),
        ("another activation", put("activation", lambda kind: type(kind).Swiglu)),
        card="gfx950",
    ),
]  # fmt: skip
