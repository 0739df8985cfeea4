"""What AITER's kernels pad is in the plan, by as many bytes as its adapter then holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atom.model_ops.activations import ClampedSwiGLU
from atom.model_ops.backends import load_backend
from atom.model_ops.values import LinearWeight, Scales, WeightFormat
from atom_operator.plan.capacity import held_as
from tests.support.aiter.aiter_models import amd_card
from tests.support.operator.builders_operator import plan

LAYERS, EXPERTS = 24, 32  # of gpt-oss-20b, whose experts are 2,880 × 2,880
SOURCE = "hf://openai/gpt-oss-20b"


def _weights(product: str, source: str = SOURCE, **engine: Any) -> int:
    accelerator = {"type": "amd", "product": product}
    planned = plan(model={"source": source}, accelerator=accelerator, engine=engine)
    assert planned.capacity.capacity is not None
    return planned.capacity.capacity.weights_bytes


def _held_bytes(w: LinearWeight) -> int:
    assert w.scales is not None
    return sum(x.nbytes for x in (w.data, w.scales.scale, w.bias) if x is not None)


def _stack(outputs: int, gating: ClampedSwiGLU | None) -> LinearWeight:
    """An expert's matrix of MXFP4 for 2,880 inputs, as it is loaded."""
    data = torch.zeros((1, outputs, 1440), dtype=torch.uint8)
    scale = torch.full((1, outputs, 90), 127, dtype=torch.uint8)
    bias = torch.zeros((1, outputs), dtype=torch.bfloat16)
    scales = Scales(WeightFormat.MXFP4, scale, (1, 32), torch.bfloat16)
    return LinearWeight(data, bias, scales, gating=gating)


def test_the_plan_counts_what_the_adapter_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _stack(5760, ClampedSwiGLU(1.702, 7.0)), _stack(2880, None)
    with amd_card(monkeypatch, "2026-08", "gfx950"), torch.inference_mode():
        prepare = load_backend("aiter").operations["prepare_experts"]
        added = sum(_held_bytes(prepare(w)) - _held_bytes(w) for w in loaded)
    assert _weights("MI355X") - _weights("MI300X") == LAYERS * EXPERTS * added
    assert 1.1 < _weights("MI355X") / _weights("MI300X") < 1.14


@pytest.mark.parametrize(
    "arguments", [["--backend=triton"], ["--backend", "triton"], ["--op-backend", "experts=triton"]]
)
def test_experts_of_another_backend_are_not_padded(arguments: list[str]) -> None:
    assert _weights("MI355X", extraArgs=arguments) == _weights("MI300X")
    assert _weights("MI355X", extraArgs=["--op-backend", "linear=triton"]) > _weights("MI300X")


def test_other_models_are_not_padded() -> None:
    source = "hf://Qwen/Qwen3-30B-A3B"
    assert _weights("MI355X", source) == _weights("MI300X", source)


def test_a_device_of_unknown_product_pads_nothing() -> None:
    accelerator = {"type": "amd", "memory": "288Gi"}
    planned = plan(model={"source": SOURCE}, accelerator=accelerator)
    assert planned.model.facts is not None
    sharding = held_as(planned.model.facts, planned.engine, planned.accelerator)
    assert sharding.expert_unit == 1
