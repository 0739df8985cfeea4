"""A self-check names the part of a fused operation that is wrong, and gives it to the reference; an
operation that the reference cannot compute is named as not compared."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_engine.runner.self_check import _refusal
from atom.model_ops.activations import Activation
from atom.model_ops.backends import ResolvedOps, load_backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_names import FUSED_OPS, OPS
from atom.model_ops.routing import Routing
from atom.model_ops.self_check.shadowed_ops import ShadowedOps
from atom.model_ops.values import (
    ExpertsWeight,
    LinearWeight,
    MoEWeight,
    NormWeight,
    RouterWeight,
    SharedWeight,
    Stream,
)

HIDDEN, INNER, EXPERTS = 32, 24, 6


def backend_that_fuses(wrong: str = "") -> ResolvedOps:
    """A backend whose experts' layer is one kernel, which does what its single kernels do; one of
    them is wrong, or the fused one alone."""
    ops = SimpleNamespace(**load_backend("torch_ref").operations)
    composed = ComposedOps(cast(Ops, ops))
    vars(ops).update({op: getattr(composed, op) for op in FUSED_OPS})
    for op in ("norm_experts", "add_experts"):
        setattr(ops, op, kernel(getattr(composed, op), op == wrong))
    if wrong in OPS:
        setattr(ops, wrong, kernel(getattr(ops, wrong), True))
    return cast(ResolvedOps, SimpleNamespace(ops=ops, chosen=dict.fromkeys(OPS, "triton")))


def kernel(compute: Callable[..., Any], is_wrong: bool) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        out = compute(*args)
        if is_wrong:
            first = out[0] if isinstance(out, tuple) else getattr(out, "weights", out)
            first = first if isinstance(first, torch.Tensor) else first.pending
            first[-1] *= 1.5
        return out

    return called


def layer() -> tuple[Stream, NormWeight, MoEWeight]:
    draw = torch.Generator().manual_seed(3)

    def matrix(*shape: int) -> LinearWeight:
        return LinearWeight(torch.randn(shape, generator=draw) * shape[-1] ** -0.5)

    silu = Activation.SILU
    experts = ExpertsWeight(
        matrix(EXPERTS, 2 * INNER, HIDDEN), matrix(EXPERTS, HIDDEN, INNER), silu, False
    )
    shared = SharedWeight(matrix(2 * INNER, HIDDEN), matrix(HIDDEN, INNER), silu)
    router, routing = RouterWeight(matrix(EXPERTS, HIDDEN)), Routing(top_k=2)
    norm = NormWeight(torch.ones(HIDDEN), 1e-6)
    stream = Stream(torch.randn(9, HIDDEN, generator=draw)).plus(
        torch.randn(9, HIDDEN, generator=draw)
    )
    return stream, norm, MoEWeight(router, routing, experts, shared)


@pytest.mark.parametrize(
    ("wrong", "given"),
    [
        ("norm_experts", "act_and_mul"),
        ("add_experts", "norm"),
        *((op, op) for op in ("norm", "route", "linear", "act_and_mul", "experts")),
    ],
)
def test_the_remedy_of_a_fused_operation_is_the_part_that_is_wrong(wrong: str, given: str) -> None:
    resolved = backend_that_fuses(wrong)
    shadowed = ShadowedOps(resolved, torch.float32, lambda: True)
    with shadowed.watching([resolved.ops]):
        resolved.ops.norm_experts(*layer())
    named = {each.op for each in shadowed.differences}
    assert wrong in named
    assert named <= {wrong, "norm_experts", "add_experts"}
    said = _refusal(shadowed.differences)
    assert said.count("--op-backend") == 1
    assert f"--op-backend {given}=torch_ref" in said


def test_a_reference_that_fails_ends_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = backend_that_fuses()
    shadowed = ShadowedOps(resolved, torch.float32, lambda: True)

    def fails(*args: Any) -> Any:
        raise NotImplementedError("no such layout")

    monkeypatch.setattr(shadowed._reference, "experts", fails)
    with shadowed.watching([resolved.ops]):
        resolved.ops.norm_experts(*layer())
    assert shadowed.differences == []
    assert shadowed.unheld == {
        "norm_experts": "the reference failed with NotImplementedError: no such layout"
    }
