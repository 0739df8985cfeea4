"""The fused MLPs of experts, of matrices in tiles."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.fp4_experts import fused_moe_fp4
from tests.support.fake_aiter.quant import quantised, unshuffled


def _rounded(x: torch.Tensor, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """x [n, in] as it is after quantisation, in float32."""
    if kind == "No":
        return x.float()
    groups = x.float() if kind == "per_Token" else x.float().unflatten(1, (-1, 128))
    codes, scale = quantised(groups, dtype)
    return (codes.float() * scale).view(x.shape)


def _matrix(w: torch.Tensor, scale: torch.Tensor | None, kind: str) -> torch.Tensor:
    """[E, out, in] float32."""
    wide = unshuffled(w).float()
    if scale is None:
        return wide
    if kind == "per_Token":
        return wide * scale
    return wide * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)


def _check_stack(
    checks: Checks,
    name: str,
    w: torch.Tensor,
    scale: torch.Tensor | None,
    kind: str,
    half: torch.dtype,
) -> None:
    checks.tensor(name, w, [half] if kind == "No" else [checks.fp8], (None, None, None))
    checks.that(getattr(w, "is_shuffled", False), f"{name} is not in tiles")
    checks.that((scale is None) == (kind == "No"), f"{name}: scales are {kind}'s")
    if scale is not None:
        count, outputs, inner = w.shape
        block = (1, inner) if kind == "per_Token" else (128, 128)
        wanted = (count, outputs // block[0], inner // block[1])
        checks.tensor(f"{name}_scale", scale, [torch.float32], wanted)


def _fused_moe(
    checks: Checks,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weight: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_mask: torch.Tensor | None,
    activation: Any,
    quant_type: Any,
    doweight_stage1: bool,
    w1_scale: torch.Tensor | None,
    w2_scale: torch.Tensor | None,
    **rest: Any,
) -> torch.Tensor:
    checks.on("gfx942", "gfx950")
    checks.tensor("hidden_states", hidden_states, HALF, (None, None))
    half, (tokens, hidden) = hidden_states.dtype, hidden_states.shape
    kind = quant_type.name
    checks.that(not doweight_stage1 and expert_mask is None, "not modelled")
    checks.tensor("topk_ids", topk_ids, [torch.int32], (tokens, None))
    checks.tensor("topk_weight", topk_weight, [torch.float32], topk_ids.shape)
    if kind == "per_1x32":
        rest |= {"w1_scale": w1_scale, "w2_scale": w2_scale}
        checks.that(activation.name in ("Swiglu", "Silu"), f"no {activation.name}")
        return fused_moe_fp4(
            checks, hidden_states, (w1, w2), (topk_ids, topk_weight), activation.name, rest
        )
    checks.that(rest["bias1"] is None and rest["bias2"] is None, "adds no biases here")
    checks.that(kind in ("No", "per_Token", "per_1x128"), f"the double has no {kind}")
    checks.that(activation.name == "Silu", f"the double has no {activation.name}")
    _check_stack(checks, "w1", w1, w1_scale, kind, half)
    _check_stack(checks, "w2", w2, w2_scale, kind, half)
    count, inner = w1.shape[0], w2.shape[2]
    checks.that(tuple(w1.shape) == (count, 2 * inner, hidden), f"w1 is {list(w1.shape)}")
    checks.that(tuple(w2.shape) == (count, hidden, inner), f"w2 is {list(w2.shape)}")
    first, second = _matrix(w1, w1_scale, kind), _matrix(w2, w2_scale, kind)
    x = _rounded(hidden_states, kind, checks.fp8)
    out = torch.zeros((tokens, hidden))
    for expert in topk_ids.unique().tolist():
        token, choice = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ first[expert].t()).chunk(2, dim=1)
        gated = _rounded((F.silu(gate) * up).to(half), kind, checks.fp8)
        out.index_add_(0, token, gated @ second[expert].t() * topk_weight[token, choice, None])
    return out.to(half)


RESULTS = {"fused_moe": _fused_moe}
