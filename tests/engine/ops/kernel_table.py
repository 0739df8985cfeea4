"""Prints docs/results/amd-kernels.md: what AMD's compiler makes of every kernel.

python -m tests.engine.ops.kernel_table > docs/results/amd-kernels.md
"""

from __future__ import annotations

import triton

from tests.engine.ops.kernel_cases import CASES, DEALT_CASES
from tests.engine.ops.test_kernels_compile import TARGETS, compiled, isa_figure

_HEAD = f"""# Kernels as compiled for AMD cards

Figures of Triton {triton.__version__}'s compiler for gfx942 (MI300X, 64 KiB of LDS) and gfx950
(MI355X, 160 KiB), at the sizes that `tests/engine/ops/kernel_cases.py` names; no kernel was
started on either card. Registers are per lane of a wavefront of 64; scratch is memory per lane that
registers are spilled to, and `test_kernels_compile.py` holds each kernel to a bound of it. Scalar
spills go to vector registers, not to memory. Written by `python -m tests.engine.ops.kernel_table`.
"""
_COLUMNS = (
    "kernel", "card", "warps", "LDS bytes", "vector registers", "scalar registers",
    "vector spills", "scalar spills", "scratch bytes",
)  # fmt: skip
_FIGURES = (
    "vgpr_count", "sgpr_count", "vgpr_spill_count", "sgpr_spill_count",
    "private_segment_fixed_size",
)  # fmt: skip


def main() -> None:
    print(_HEAD)
    print(f"| {' | '.join(_COLUMNS)} |")
    print("|---|---|" + "--:|" * (len(_COLUMNS) - 2))
    for case in [*CASES, *DEALT_CASES]:
        for card, (target, _) in TARGETS.items():
            if target.backend == "hip":
                binary = compiled(*case.values, card)
                figures = " | ".join(str(isa_figure(binary, name)) for name in _FIGURES)
                warps, shared = binary.metadata.num_warps, binary.metadata.shared
                print(f"| {case.id} | {target.arch} | {warps} | {shared:,} | {figures} |")


if __name__ == "__main__":
    main()
