"""Sums over ranks by memory of their peers: here by the group of hosts that exchanges addresses."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.support.fake_aiter.binding import Bind
from tests.support.fake_aiter.checks import HALF, Checks

_SIZES = (2, 4, 6, 8)


class CustomAllreduce:
    """bind: checks a call of a method by the record, and notes it."""

    def __init__(self, bind: Bind, architecture: str, **given: Any) -> None:
        self._bind, self._architecture = bind, architecture
        arguments = bind("", **given)
        checks = self._checks()
        group = arguments["group"]
        checks.that(dist.get_backend(group) != "nccl", "addresses are exchanged by hosts")
        self._group, self._room = group, arguments["max_size"]
        checks.that(self._room > 0 and self._room % 2 == 0, f"room of {self._room} bytes")
        self.disabled = dist.get_world_size(group) not in _SIZES

    def custom_all_reduce(self, **given: Any) -> torch.Tensor | None:
        arguments = self._bind("custom_all_reduce", **given)
        checks, x = self._checks(), arguments["input"]
        checks.that(not arguments["open_fp8_quant"], "sums are rounded to eight bits")
        checks.tensor("input", x, [*HALF, torch.float32])
        return self._total(x).to(x.dtype) if self._takes(x) else None

    def custom_fused_ar_rms(self, **given: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        arguments = self._bind("custom_fused_ar_rms", **given)
        checks, x, weight = self._checks(), arguments["input"], arguments["weight"]
        checks.tensor("input", x, HALF, (None, None))
        checks.tensor("residual_inp", arguments["residual_inp"], [x.dtype], x.shape)
        checks.tensor("weight", weight, [x.dtype], (x.shape[1],))
        checks.that(not any(arguments.get(name) for name in ("out_hidden_dim", "gemma_norm")),
                    "not modelled")  # fmt: skip
        checks.that(x.shape[1] <= 16384, "has no norm as wide")
        checks.that(dist.get_world_size(self._group) != 6, "has no norm over 6 ranks")
        if not self._takes(x):
            return None
        # The sum is rounded before it is normed.
        total = (self._total(x) + arguments["residual_inp"].float()).to(x.dtype)
        wide = total.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + arguments["eps"])
        return (wide * scale * weight.float()).to(x.dtype), total

    def _takes(self, x: torch.Tensor) -> bool:
        return not self.disabled and x.nbytes % 16 == 0 and x.nbytes <= self._room // 2

    def _total(self, x: torch.Tensor) -> torch.Tensor:
        """Float32, in the order of ranks."""
        everyone = [torch.empty_like(x) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(everyone, x.contiguous(), group=self._group)
        return torch.stack([each.float() for each in everyone]).sum(0)

    def _checks(self) -> Checks:
        checks = Checks("CustomAllreduce", self._architecture)
        checks.on("gfx942", "gfx950")
        return checks


CLASSES = {"aiter.dist.device_communicators.custom_all_reduce.CustomAllreduce": CustomAllreduce}
