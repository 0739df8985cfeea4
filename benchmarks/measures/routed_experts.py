"""How many experts a number of tokens really goes through, counted while prompts are computed.

Prompts run eagerly, so routers can be listened to; tokens of random prompts stand for the rows of a
decode step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from atom.model_ops.moe.router import Router

_MOST_ROWS = 256


@contextmanager
def listening() -> Iterator[list[torch.Tensor]]:
    """The ids [T, k] that routers give meanwhile, of the first tokens of each call."""
    heard: list[torch.Tensor] = []

    def hear(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, Router):
            heard.append(output.ids[:_MOST_ROWS].clone())

    hook = register_module_forward_hook(hear)
    try:
        yield heard
    finally:
        hook.remove()


def touched(heard: list[torch.Tensor], rows: int) -> float | None:
    """Experts of a layer that `rows` tokens went through, on average; None where there are none."""
    counts = [len(set(ids[:rows].flatten().tolist())) for ids in heard if len(ids) >= rows]
    return sum(counts) / len(counts) if counts else None
