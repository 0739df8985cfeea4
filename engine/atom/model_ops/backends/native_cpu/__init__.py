"""The CPU's compiled backend: kernels in C for float32, compiled on first use.

For machines with a C compiler; elsewhere, and for other dtypes, `torch_cpu` computes the same with
PyTorch alone. A decode step of a small model is bound by its products, which the kernels compute
about twice as fast as torch's library does for few rows, and by the number of passes over memory
between them. Why C, and why compiled here: docs/adr/0013-compiled-cpu-kernels.md.
"""

from __future__ import annotations

import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.expert_choice import router
from atom.model_ops.backends.grouped_experts import grouped_experts
from atom.model_ops.backends.native_cpu import attention, dense, sampling
from atom.model_ops.backends.native_cpu.library import why_not
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.quantised.dequantise import prepare_for_cpu


def backend() -> Backend:
    reason = why_not()
    return Backend(
        name="native_cpu",
        operations={
            "prepare_linear": prepare_for_cpu,
            "prepare_experts": prepare_for_cpu,
            "linear": dense.linear,
            "norm_linear": dense.norm_linear,
            "norm_gated_linear": dense.norm_gated_linear,
            "rms_norm": dense.rms_norm,
            "norm": dense.norm,
            "act_and_mul": dense.act_and_mul,
            "route": router(dense.linear),
            "experts": grouped_experts(dense.linear, dense.act_and_mul),
            "qk_norm_rope_store": attention.qk_norm_rope_store,
            "paged_attention": attention.paged_attention,
            "sample": sampling.sample,
        },
        unusable=() if reason is None else (reason,),
        reasons_against=reasons_against,
        expands=True,
    )


_CACHED = ("qk_norm_rope_store", "paged_attention", "attention")


def reasons_against(op: str, case: OpCase) -> tuple[str, ...]:
    dtypes = {case.dtype, case.kv_dtype} if op in _CACHED else {case.dtype}
    if dtypes != {torch.float32}:
        names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return (f"made for float32, not {' and '.join(names)}",)
    if op == "paged_attention" and any(
        shape.softcap is not None for shape in case.layers.attention
    ):
        return ("its attention has no soft cap of scores",)
    if op == "paged_attention" and any(shape.has_sinks for shape in case.layers.attention):
        return ("its attention has no sinks",)
    if op in ("act_and_mul", "norm_gated_linear", "experts"):
        others = [kind.value for kind in case.activations if kind is not Activation.SILU]
        return tuple(f"its kernels have no {name}" for name in others)
    return ()
