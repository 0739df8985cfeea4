"""Which layers' experts of few tokens are two launches, by how their matrices are stored."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.activations import Activation
from atom.model_ops.backends.triton_ops.moe import gemv
from atom.model_ops.routing import Routing
from atom.model_ops.values import (
    ExpertsWeight,
    LinearWeight,
    MoEWeight,
    RouterWeight,
    Scales,
    SharedWeight,
    WeightFormat,
)

PLAIN, FP8, BLOCKS = WeightFormat.PLAIN, WeightFormat.FP8, WeightFormat.FP8_BLOCKS


def matrix(shape: tuple[int, ...], kind: WeightFormat, block: tuple[int, int]) -> LinearWeight:
    if kind is PLAIN:
        return LinearWeight(torch.empty(shape, device="meta"))
    scales = Scales(kind, torch.empty(1, device="meta"), block, torch.bfloat16)
    return LinearWeight(torch.empty(shape, dtype=torch.uint8, device="meta"), scales=scales)


def layer(
    kind: WeightFormat, block: tuple[int, int], shared: WeightFormat | None = None, inner: int = 48
) -> MoEWeight:
    experts = ExpertsWeight(
        matrix((64, 2 * inner, 32), kind, block), matrix((64, 32, inner), kind, block),
        Activation.SILU,
    )  # fmt: skip
    beside = shared and SharedWeight(
        matrix((2 * inner, 32), shared, block), matrix((32, inner), shared, block), Activation.SILU
    )
    return MoEWeight(
        RouterWeight(LinearWeight(torch.empty(64, 32))), Routing(top_k=4), experts, beside
    )


@pytest.mark.parametrize(
    ("w", "taken"),
    [
        (layer(PLAIN, (0, 0)), True),
        (layer(BLOCKS, (128, 128)), True),
        (layer(BLOCKS, (128, 128), BLOCKS), True),
        (layer(FP8, (1, 32), FP8), True),
        (layer(BLOCKS, (128, 128), PLAIN), False),
        (layer(PLAIN, (0, 0), BLOCKS), False),
        (layer(BLOCKS, (6, 128)), False),  # a program's rows lie in two blocks
        (layer(BLOCKS, (128, 24)), False),  # so do a lane's inputs
        (layer(BLOCKS, (128, 128), inner=22), False),  # and the ups' rows
        (layer(WeightFormat.INT4, (1, 32)), False),
    ],
)
def test_which_formats_are_two_launches(w: MoEWeight, taken: bool) -> None:
    assert gemv.multiplies(w) is taken


def test_blocks_of_a_shared_expert_are_the_experts() -> None:
    w = layer(BLOCKS, (128, 128), BLOCKS)
    assert w.shared is not None
    down = matrix((32, 48), BLOCKS, (64, 128))
    assert not gemv.multiplies(replace(w, shared=replace(w.shared, down=down)))
    stack = matrix((64, 32, 48), BLOCKS, (64, 128))
    experts, shared = replace(w.experts, down=stack), replace(w.shared, down=down)
    assert gemv.multiplies(replace(w, experts=experts, shared=shared))


def test_tokens_that_share_experts_are_the_tensor_cores() -> None:
    w = layer(BLOCKS, (128, 128))
    assert [gemv.takes(w, tokens) for tokens in (1, 4, 5)] == [True, True, False]
