"""A self-check leaves out each token whose experts a rounding changes, and few others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from atom.model_ops.backends import ResolvedOps, load_backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.expert_choice import choose, wide_logits
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_names import FUSED_OPS, OPS
from atom.model_ops.routing import Routing, Scoring
from atom.model_ops.self_check.agreement import TOLERANCE
from atom.model_ops.self_check.routing_ties import undecided_tokens
from atom.model_ops.self_check.shadowed_ops import ShadowedOps
from atom.model_ops.values import LinearWeight, NormWeight, Pending, RouterWeight, Stream

TOKENS, HIDDEN = 600, 64
# Experts, how many tokens are compared at least, and the rule.
CASES = {
    "one of 64": (64, 0.5, Routing(top_k=1)),
    "eight of 128": (128, 0.5, Routing(top_k=8, renormalize=True)),
    "ten of 512": (512, 0.3, Routing(top_k=10, renormalize=True)),
    "four of 32": (32, 0.6, Routing(top_k=4, scoring=Scoring.SIGMOID)),
    "groups": (64, 0.3, Routing(top_k=6, groups=8, groups_kept=3)),
    "pairs of groups": (
        64, 0.3, Routing(top_k=8, scoring=Scoring.SIGMOID, groups=8, groups_kept=4, group_top=2)
    ),
    "roots": (48, 0.5, Routing(top_k=6, scoring=Scoring.SQRT_SOFTPLUS)),
}  # fmt: skip


def choices(x: torch.Tensor, router: RouterWeight, routing: Routing) -> torch.Tensor:
    ids = choose(wide_logits(x, router), router.e_score_correction_bias, routing).ids
    return ids.sort(1).values


def drawn_router(experts: int, routing: Routing, draw: torch.Generator) -> RouterWeight:
    """Some experts are twins, whose logits are equal, and some nearly so."""
    w = torch.randn(experts, HIDDEN, generator=draw) * 0.3
    w[1] = w[0] * 1.0005
    w[-1] = w[-2]
    grouped = routing.is_grouped or routing.scoring is Scoring.SIGMOID
    correction = torch.rand(experts, generator=draw) * 0.1 if grouped else None
    return RouterWeight(LinearWeight(w.bfloat16().float()), correction)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("route", torch.bfloat16), ("norm_experts", torch.bfloat16), ("norm_experts", torch.float16)],
)
@pytest.mark.parametrize("case", CASES)
def test_a_token_whose_experts_a_rounding_changes_is_not_compared(
    case: str, op: str, dtype: torch.dtype
) -> None:
    experts, least, routing = CASES[case]
    draw = torch.Generator().manual_seed(len(case))
    router = drawn_router(experts, routing, draw)
    norm = NormWeight(torch.rand(HIDDEN, generator=draw) + 0.5, 1e-6)
    parts = torch.randn(3, TOKENS, HIDDEN, generator=draw)
    residual = torch.randn(TOKENS, HIDDEN, generator=draw)
    summed = residual + parts.sum(0)
    x = summed * (summed.square().mean(1, keepdim=True) + norm.eps).rsqrt() * norm.weight
    # As kernels do: the sum of parts, the new residual, and the norm's two products.
    narrow = (residual + parts.sum(0).to(dtype).float()).to(dtype).float()
    narrow = (narrow * (narrow.square().mean(1, keepdim=True) + norm.eps).rsqrt()).to(dtype)
    narrow = (narrow.float() * norm.weight).to(dtype).float()
    args = (x, router, routing)
    if op == "norm_experts":
        args = (Stream(residual, parts, Pending.PARTS), norm, Layer(router, routing))
    undecided = undecided_tokens(op, args, TOLERANCE[dtype])
    assert undecided is not None
    changed = (choices(narrow, router, routing) != choices(x, router, routing)).any(1)
    if dtype is torch.bfloat16:
        assert changed.any(), "no drawn token is near a limit"
    assert not (changed & ~undecided).any()
    assert (~undecided).float().mean() >= least


class Layer:
    """The part of a layer's weights that chooses."""

    def __init__(self, router: RouterWeight, routing: Routing) -> None:
        self.router, self.routing = router, routing


@pytest.mark.parametrize("is_decided_later", [True, False])
def test_a_call_without_a_token_to_compare_leaves_its_shape_to_the_next(
    is_decided_later: bool,
) -> None:
    reference = SimpleNamespace(**load_backend("torch_ref").operations)
    composed = ComposedOps(cast(Ops, reference))
    ops = SimpleNamespace(**{**vars(reference), **{op: getattr(composed, op) for op in FUSED_OPS}})
    resolved = cast(ResolvedOps, SimpleNamespace(ops=ops, chosen=dict.fromkeys(OPS, "triton")))
    shadowed = ShadowedOps(resolved, torch.bfloat16, lambda: True)
    tied, parted = torch.ones(2, HIDDEN), torch.eye(2, HIDDEN)
    x = torch.eye(1, HIDDEN) + 0.5
    with shadowed.watching([ops]):
        for matrix in (tied, parted if is_decided_later else tied):
            ops.route(x, RouterWeight(LinearWeight(matrix)), Routing(top_k=1))
    assert shadowed.held == ({"route": 1} if is_decided_later else {})
    assert list(shadowed.unheld) == ([] if is_decided_later else ["route"])
