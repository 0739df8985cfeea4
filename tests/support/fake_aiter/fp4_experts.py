"""The fused MLPs of experts of four bits.

Of two kinds. gpt-oss': gates and ups alternate by tile of 16 rows, inputs are 16 bits, or e4m3
without a scale where tokens are many; biases are float32. The others': in tiles as single matrices
are, with inputs of four bits. Padding is skipped by the tile, so that a wrong count shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.support.fake_aiter.checks import Checks
from tests.support.fake_aiter.fp4 import (
    FP4,
    lanes,
    lanes_of_exponents,
    numbers,
    restored,
    rounded,
    tiles_of_exponents,
)
from tests.support.fake_aiter.quant import unshuffled

_PADDED = 256
_SKIPPED_INPUTS, _SKIPPED_OUTPUTS = 128, 64
# As many tokens are multiplied in e4m3: a constant in 2026-02, later a variable's default.
_MANY = {False: 512, True: 256}


@dataclass
class _Stacks:
    """As they are read, float32: first [E, 2·I, H], second [E, H, I]."""

    first: torch.Tensor
    second: torch.Tensor


def fused_moe_fp4(
    checks: Checks,
    x: torch.Tensor,
    stacks: tuple[torch.Tensor, torch.Tensor],
    routed: tuple[torch.Tensor, torch.Tensor],
    activation: str,
    rest: dict[str, Any],
) -> torch.Tensor:
    checks.on("gfx950")
    checks.tensor("hidden_states", x, [torch.bfloat16])
    alternate = activation == "Swiglu"
    read = _read(checks, stacks, rest, alternate)
    _check_rest(checks, read, rest, alternate)
    inner, hidden = read.second.shape[2], read.first.shape[2]
    pads = rest["intermediate_pad"], rest["hidden_pad"]
    read.first.unflatten(1, (2, inner))[:, :, inner - _whole(pads[0], _SKIPPED_OUTPUTS) :] = 0
    read.first[..., hidden - _whole(pads[1], _SKIPPED_INPUTS) :] = 0
    read.second[:, hidden - _whole(pads[1], _SKIPPED_OUTPUTS) :] = 0
    read.second[..., inner - _whole(pads[0], _SKIPPED_INPUTS) :] = 0
    many = len(x) >= _MANY["gate_mode" in rest]

    def taken(values: torch.Tensor) -> torch.Tensor:
        if not alternate:
            return numbers(*rounded(values))
        return values.to(checks.fp8).float() if many else values.to(torch.bfloat16).float()

    return _computed(read, taken, x, routed, rest if alternate else {}).to(x.dtype)


def _computed(
    read: _Stacks,
    taken: Any,
    x: torch.Tensor,
    routed: tuple[torch.Tensor, torch.Tensor],
    rest: dict[str, Any],
) -> torch.Tensor:
    ids, weights = routed
    bias1, bias2 = rest.get("bias1"), rest.get("bias2")
    limit = 7.0 if not rest.get("swiglu_limit") else rest["swiglu_limit"]
    x, out = taken(x), torch.zeros(x.shape)
    for expert in ids.unique().tolist():
        token, choice = (ids == expert).nonzero(as_tuple=True)
        both = x[token] @ read.first[expert].t()
        both = both if bias1 is None else both + bias1[expert]
        gate, up = both.chunk(2, dim=1)
        if rest:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            gated = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        else:
            gated = F.silu(gate) * up
        result = taken(gated.to(torch.bfloat16)) @ read.second[expert].t()
        result = result if bias2 is None else result + bias2[expert]
        out.index_add_(0, token, result * weights[token, choice, None])
    return out


def _read(
    checks: Checks,
    stacks: tuple[torch.Tensor, torch.Tensor],
    rest: dict[str, Any],
    alternate: bool,
) -> _Stacks:
    found = []
    for number, w in enumerate(stacks, 1):
        parts = 2 if alternate and number == 1 else 1
        checks.tensor(f"w{number}", w, [FP4], (None, None, None))
        count, rows, width = w.shape
        tiled = (rows // (3 - number)) % _PADDED == 0 and 2 * width % _PADDED == 0
        checks.that(tiled, f"w{number} {list(w.shape)} is not padded to {_PADDED}")
        exponents = rest[f"w{number}_scale"]
        checks.tensor(f"w{number}_scale", exponents, [torch.uint8], (count * rows, width // 16))
        stack = exponents.view(count, rows, -1)
        if alternate:
            data = restored(w, lambda x, parts=parts: lanes(x, parts))
            stack = restored(stack, lambda x, parts=parts: lanes_of_exponents(x, parts))
        else:
            checks.that(getattr(w, "is_shuffled", False), f"w{number} is not in tiles")
            data = unshuffled(w.view(torch.uint8))
            stack = restored(exponents, tiles_of_exponents).view(stack.shape)
        found.append(numbers(data, stack))
    return _Stacks(*found)


def _check_rest(checks: Checks, read: _Stacks, rest: dict[str, Any], alternate: bool) -> None:
    for number, stack in ((1, read.first), (2, read.second)):
        bias = rest.get(f"bias{number}")
        checks.that(alternate or bias is None, f"bias{number} is not added")
        if bias is not None:
            checks.tensor(f"bias{number}", bias, [torch.float32], stack.shape[:2])
    if "gate_mode" in rest:
        wanted = "interleave" if alternate else "separated"
        checks.that(rest["gate_mode"] == wanted, f"gate_mode {rest['gate_mode']}")
        checks.that(alternate or not rest["swiglu_limit"], "not modelled")
    known = {"w1_scale", "w2_scale", "bias1", "bias2", "hidden_pad", "intermediate_pad",
             "gate_mode", "swiglu_limit", "shared_expert_id"}  # fmt: skip
    others = {name: value for name, value in rest.items() if name not in known and value}
    checks.that(not others, f"not modelled: {others}")


def _whole(count: int, of: int) -> int:
    return count // of * of
