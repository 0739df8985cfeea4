"""Variables of upstream's ATOM, of vLLM and of AITER: which are honoured, and their replacements.

A recipe's launch line often begins with some of them, and an ignored variable gives no sign. Knows
names and words; read once per start of a program, when its options are built.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from atom.sizing.options.table import OPTIONS

logger = logging.getLogger(__name__)

# Those of upstream that give an option's default; an option may have a variable of vLLM instead.
HONOURED = tuple(
    each.variable for each in OPTIONS if each.variable and each.variable.startswith("ATOM_")
)

_RANKS = "a server starts its own ranks and finds them itself; use --data-parallel-size"
_KERNELS = "which kernels run is chosen per operation; use --backend or --op-backend OP=NAME"
_TILES = "matrices lie in tiles wherever their sizes allow it"
_FUSION = "operations are fused wherever the backend can; --op-backend OP=torch_ref avoids it"
_QUANTISES = "activations are quantised by the product that takes them; leave it out"
_REDUCES = "ranks' sums are settled where the norm is, by one way only; leave it out"
INSTEAD: dict[str, str] = {
    "ATOM_DP_RANK": _RANKS,
    "ATOM_DP_RANK_LOCAL": _RANKS,
    "ATOM_DP_SIZE": _RANKS,
    "ATOM_DP_MASTER_IP": _RANKS,
    "ATOM_DP_MASTER_PORT": _RANKS,
    "ATOM_USE_TRITON_GEMM": _KERNELS,
    "ATOM_USE_TRITON_MXFP4_BMM": _KERNELS,
    "ATOM_USE_TRITON_MLA": _KERNELS,
    "ATOM_USE_TRITON_MOE": _KERNELS,
    "ATOM_USE_TRITON_ATTN": _KERNELS,
    "ATOM_USE_UNIFIED_ATTN": _KERNELS,
    "ATOM_FORCE_ATTN_TRITON": _KERNELS,
    "ATOM_USE_GLUON_PA_DECODE": _KERNELS,
    "ATOM_FP8_BLOCKSCALE_WEIGHT_PRESHUFFLE": _TILES,
    "ATOM_USE_FP4_NON_SHUFFLE_TRITON_GEMM": _TILES,
    "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION": _FUSION,
    "ATOM_ENABLE_DS_INPUT_RMSNORM_QUANT_FUSION": _QUANTISES,
    "ATOM_ENABLE_DS_QKNORM_QUANT_FUSION": _QUANTISES,
    "ATOM_ENABLE_ALLREDUCE_RMSNORM_FUSION": _REDUCES,
    "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_RMSNORM_QUANT": _QUANTISES,
    "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_SILU_MUL_QUANT": _QUANTISES,
    "ATOM_PROFILER_MORE": "traces hold every operation with its time, and no more",
}
# AITER reads its own variables, all of them; these change the cost of a start, or features.
OF_AITER: dict[str, str] = {
    "AITER_TRITON_ONLY": "aiter leaves its compiled functions out, so most operations are Triton's",
    "AITER_REBUILD": "aiter compiles its kernels anew when they are first used, for minutes",
    "AITER_TUNE_GEMM": "aiter records the shapes of products to tune them, beside serving",
    "AITER_ONLINE_TUNE": "aiter tunes products as they come, so first steps take long",
}
# Variables that this project reads elsewhere, and those that Kubernetes sets in pods beside a
# Service whose name begins with "atom".
_OURS = re.compile(
    r"ATOM_(ADMIN_API_KEY|API_KEY|CACHE_DIR|CLAIM_UID|COMPILE_AHEAD|HANDOVER_SECRET|HOST_IP|JOIN_ONCE"
    r"|SSL_KEYFILE_PASSWORD|TERMINATION_LOG|OPERATOR_\w+|DEVCLUSTER_\w+)"
    r"|ATOM_\w*(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+|PORT)"
)
_TRUE = frozenset({"1", "true"})


def is_switched_on(environment: Mapping[str, str], variable: str) -> bool:
    """Return whether the environment switches a variable on."""
    return environment.get(variable, "").lower() in _TRUE


def warn_of_switches(environment: Mapping[str, str]) -> None:
    """Log one warning for each set variable that has no effect, or a surprising one, and one for
    all unknown variables with upstream's prefix."""
    for name, instead in INSTEAD.items():
        if name in environment:
            logger.warning("the variable %s has no effect: %s", name, instead)
    unknown = [name for name in environment if _is_unknown(name)]
    if unknown:
        names = ", ".join(sorted(unknown))
        logger.warning("variables that this engine does not know, without effect: %s", names)
    for name, effect in OF_AITER.items():
        if environment.get(name, "0").lower() not in ("", "0", "false"):
            logger.warning("the variable %s is set: %s", name, effect)


def _is_unknown(name: str) -> bool:
    known = name in INSTEAD or name in HONOURED or _OURS.fullmatch(name) is not None
    return name.startswith("ATOM_") and not known
