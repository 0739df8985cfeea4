"""Experts of MXFP4 by AITER's fused MoE, which pads their sizes to whole tiles.

There are two kinds, by their activations. gpt-oss' experts have a clamped activation and biases.
Their inputs keep the model's dtype, and are rounded to e4m3 for many tokens; their w1 and w3
alternate by tile. The others are for checkpoints whose inputs are MXFP4 too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from atom.model_ops.activations import ClampedSwiGLU
from atom.model_ops.backends.aiter_ops.fp4 import FP4, in_tiles
from atom.model_ops.backends.aiter_ops.library import Library
from atom.model_ops.routing import Routed
from atom.model_ops.values import ExpertsWeight, LinearWeight
from atom.sizing.kernel_padding import AITER_EXPERT_UNIT

_GROUP = 32  # inputs of an exponent
# The activation of AITER's kernels, which have it in their code.
CLAMPED = ClampedSwiGLU(alpha=1.702, limit=7.0)


def prepare(library: Library, w: LinearWeight) -> LinearWeight:
    """Prepare a loaded stack `w`; its `gating` tells whether it is gate and up."""
    padded = _padded(w)
    # Both orders are equal for other stacks than gate and up.
    prepared = _by_lanes if w.gating == CLAMPED else in_tiles
    padded = prepared(library, padded)
    # As AITER itself does: an attribute of the tensor marks the padding of the inputs.
    padded.data.input_padding = padded.inputs - w.inputs  # type: ignore[attr-defined]
    return padded


def experts(library: Library, x: torch.Tensor, w: ExpertsWeight, routed: Routed) -> torch.Tensor:
    first, second, hidden = w.gate_up, w.down, x.shape[1]
    assert first.scales is not None
    assert second.scales is not None
    kinds, activations = library.found["QuantType"], library.found["ActivationType"]
    clamped = w.activation == CLAMPED
    given: dict[str, Any] = {}
    assert clamped or first.bias is None, "biases are for the clamped activation's kernels"
    if clamped:
        given = {"bias1": first.bias, "bias2": second.bias}
        # Younger than the function. Without it w1 and w3 alternate already.
        if library.takes("fused_moe", "gate_mode"):
            given |= {"gate_mode": "interleave", "swiglu_limit": CLAMPED.limit}
    out: torch.Tensor = library["fused_moe"](
        hidden_states=F.pad(x, (0, first.inputs - hidden)).contiguous(),
        w1=first.data,
        w2=second.data,
        topk_weight=routed.weights,
        topk_ids=routed.ids,
        activation=activations.Swiglu if clamped else activations.Silu,
        quant_type=kinds.per_1x32,
        w1_scale=first.scales.scale,
        w2_scale=second.scales.scale,
        hidden_pad=first.data.input_padding,  # type: ignore[attr-defined]
        intermediate_pad=second.data.input_padding,  # type: ignore[attr-defined]
        **given,
    )
    return out[:, :hidden].contiguous()


def _padded(w: LinearWeight) -> LinearWeight:
    """Pad with rows and columns of zeros; biases become float32."""
    assert w.scales is not None
    parts = 1 if w.gating is None else 2
    rows = -(w.outputs // parts) % AITER_EXPERT_UNIT
    columns = -w.inputs % AITER_EXPERT_UNIT

    def wider(x: torch.Tensor, columns: int) -> torch.Tensor:
        return F.pad(x.unflatten(1, (parts, -1)), (0, columns, 0, rows)).flatten(1, 2)

    bias = None
    if w.bias is not None:
        bias = wider(w.bias.float().unsqueeze(-1), 0).squeeze(-1)
    return replace(
        w,
        data=wider(w.data, columns // 2),
        bias=bias,
        scales=replace(w.scales, scale=wider(w.scales.scale, columns // _GROUP)),
    )


def _by_lanes(library: Library, w: LinearWeight) -> LinearWeight:
    assert w.scales is not None
    data = library["shuffle_weight_a16w4"](src=w.data.view(FP4), NLane=16, gate_up=True)
    exponents = library["shuffle_scale_a16w4"](
        src=w.scales.scale.flatten(0, 1), experts_cnt=len(w.data), gate_up=True
    )
    return replace(w, data=data, scales=replace(w.scales, scale=exponents))
