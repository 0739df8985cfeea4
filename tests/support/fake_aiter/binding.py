"""How a call must look: names, positions, types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tests.support.fake_aiter.record import Function

# The first position whose meaning changed between releases: from there on a value would land in
# another parameter without an error.
TRAPS = {
    "aiter.rmsnorm2d_fwd_with_add": 6,
    "aiter.get_mla_metadata_v1": 2,
    "aiter.fused_moe.fused_moe": 22,
    "aiter.ops.triton.gluon.pa_decode_gluon.pa_decode_gluon": 9,
    "aiter.fused_qk_norm_rope_cache_quant_shuffle": 0,
    "aiter.mla.mla_decode_fwd": 8,
    "aiter.topk_softmax": 5,
    "aiter.silu_and_mul": 2,
    "aiter.ops.shuffle.shuffle_weight": 3,
    "aiter.gemm_a8w8_blockscale_bpreshuffle": 5,
    "aiter.get_mla_metadata_info_v1": 9,
}


class ContractError(AssertionError):
    """What the real AITER would refuse, or compute something else for."""


class Bind(Protocol):
    """Checks keywords by the record of a class (no method: its constructor), adds defaults."""

    def __call__(self, method: str, **given: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Call:
    """name: without modules; positional: how many arguments had no keyword."""

    name: str
    positional: int
    arguments: dict[str, Any]


def require(holds: bool, name: str, message: str) -> None:
    if not holds:
        raise ContractError(f"{name}: {message}")


def bind(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Raises TypeError as Python does, and ContractError."""
    bound = function.signature.bind(*args, **kwargs)
    trap = TRAPS.get(function.name)
    short = function.name.rpartition(".")[2]
    require(
        trap is None or len(args) <= trap,
        short,
        f"position {trap} is another parameter in another release; pass it by keyword",
    )
    given = dict(bound.arguments)
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        annotation = function.signature.parameters[name].annotation
        if name in given and isinstance(annotation, str):
            _check_type(short, name, value, annotation, function.is_compiled)
    return Call(short, len(args), dict(bound.arguments))


def _check_type(function: str, name: str, value: Any, annotation: str, compiled: bool) -> None:
    kinds = [kind.strip() for kind in annotation.split("|")]
    if value is None:
        allowed = "None" in kinds or not compiled
        require(allowed, function, f"{name} is None, and {annotation} is wanted")
        return
    checks = {
        "Tensor": isinstance(value, torch.Tensor),
        "torch.tensor": isinstance(value, torch.Tensor),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, (int, float)) and not isinstance(value, bool),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "dtype": isinstance(value, torch.dtype),
        "torch.device": isinstance(value, torch.device),
        "dict": isinstance(value, dict),
    }
    known = [kind for kind in kinds if kind in checks]
    if known:
        fits = any(checks[kind] for kind in known)
        require(fits, function, f"{name} is {type(value).__name__}, and {annotation} is wanted")
