"""Kernels whose tiles are dealt out to eight dies give, bit for bit, what they give in the grid's
order; no number of programs here is a multiple of eight."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.triton_ops import xcd_order
from atom.model_ops.backends.triton_ops.compile.tuning import SplitKConfig
from atom.model_ops.backends.triton_ops.gemm import measured_tiles
from atom.model_ops.backends.triton_ops.gemm.split_k_linear import gated_linear, split_k_linear
from atom.model_ops.backends.triton_ops.moe.grouped_gemm import expert_parts
from atom.model_ops.backends.triton_ops.moe.grouped_tiles import ExpertTile
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight, WeightFormat
from tests.engine.ops.inputs import paged_case
from tests.engine.ops.parity.gemm.test_quantised_linear import matrix, stored


@pytest.fixture
def same_on_eight_dies(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> Callable[..., None]:
    def check(compute: Callable[[], torch.Tensor]) -> None:
        in_order, asked, allocate = compute(), [], torch.empty

        def card_dies(device: torch.device) -> int:
            asked.append(device)
            return 8

        def poisoned(*sizes: Any, **options: Any) -> torch.Tensor:
            """What no program writes stays NaN."""
            made = allocate(*sizes, **options)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        with monkeypatch.context() as patch:
            patch.setattr(xcd_order, "card_dies", card_dies)
            patch.setattr(torch, "empty", poisoned)
            dealt = compute()
        assert asked, "the kernel asks for no order"
        assert torch.equal(dealt, in_order)

    return check


@pytest.mark.parametrize(
    "kind", [WeightFormat.FP8_BLOCKS, WeightFormat.INT8, WeightFormat.INT4, WeightFormat.MXFP4]
)
def test_products_of_codes(
    backend: Backend, device: torch.device, kind: WeightFormat,
    same_on_eight_dies: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Tiles that were measured are those of a card of one die, and ask for no order.
    monkeypatch.setattr(measured_tiles, "_is_like", lambda device: False)
    w = stored(matrix(600, 128, device), kind, torch.float16, group=32)
    w = backend.operations["prepare_linear"](w)
    x = torch.randn(130, 128, device=device).half()
    same_on_eight_dies(lambda: backend.operations["linear"](x, w))


@pytest.mark.parametrize("split_k", [1, 2])
def test_split_products(
    device: torch.device, split_k: int, same_on_eight_dies: Callable[..., None]
) -> None:
    x = torch.randn(75, 256, device=device)
    w = LinearWeight(torch.randn(320, 256, device=device) / 16)
    config = SplitKConfig(64, 64, split_k, True, 4, 3, block_t=32)
    same_on_eight_dies(lambda: split_k_linear(x, w, config))
    if split_k == 1:
        same_on_eight_dies(lambda: gated_linear(x, LinearWeight(w.data[:256]), config))


def test_experts_of_sorted_pairs(
    device: torch.device, same_on_eight_dies: Callable[..., None]
) -> None:
    """Of tiles of rows more than eight dies take at a time, and a rest."""
    draw = torch.Generator().manual_seed(0)
    gate_up, down = (torch.randn(5, rows, 32, generator=draw) / 8 for rows in (64, 24))
    w = ExpertsWeight(
        LinearWeight(gate_up.to(device)), LinearWeight(down.to(device)), Activation.SILU
    )
    ids = torch.stack([torch.randperm(5, generator=draw)[:3] for _ in range(352)])
    routed = Routed(ids.int().to(device), torch.rand(352, 3, generator=draw).to(device))
    x = torch.randn(352, 32, generator=draw).to(device)
    tile = ExpertTile(block_m=16, block_n=32, block_k=32, num_warps=4, num_stages=2)
    same_on_eight_dies(lambda: expert_parts(x, w, routed, tile))


@pytest.mark.parametrize("heads", [(6, 2), (4, 4)])
def test_attention_of_prompts(
    backend: Backend, device: torch.device, heads: tuple[int, int],
    same_on_eight_dies: Callable[..., None],
) -> None:  # fmt: skip
    case = paged_case(
        [(40, 40), (70, 30)], device=device, dtype=torch.float32, heads=heads, head_dim=16
    )
    same_on_eight_dies(lambda: backend.operations["paged_attention"](*case.arguments))
