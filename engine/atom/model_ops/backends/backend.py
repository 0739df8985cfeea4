"""A backend: a named set of implementations of operations, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from atom.collectives.group import Group
from atom.model_ops.backends.op_case import OpCase


def _no_reasons(op: str, case: OpCase) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class WarmupCompile:
    """A backend's way to compile its kernels ahead. steps: a device, a key of the start's
    configuration, and a number of cores → a context in which steps have kernels compiled and run
    none; it gives a function that waits until they are ready. is_done: whether an equal start has
    done so, and its kernels are cached."""

    steps: Callable[[torch.device, str, int], AbstractContextManager[Callable[[], None]]]
    is_done: Callable[[torch.device, str], bool]


@dataclass(frozen=True, slots=True)
class Backend:
    """A named set of implementations.

    operations: op name → callable with the signature in `Ops`; capturable: those that may be
    captured into a graph; prompts: attention operations that may be captured in a step with
    prompts, whose lengths only the device knows then; unusable: the reasons why the backend cannot
    be used here at all (empty if it can); reasons_against: the reasons why it cannot compute an
    operation of a case, empty if it can; expands: its `prepare_linear` makes quantised matrices
    plain ones of the model's dtype; arranges: only its own operations read matrices that it
    prepared, or blocks that it filled; join: a group of ranks, its device, bytes of a token between
    layers → the same ranks with its own kernels; warmup_compile: compiles its kernels before a step
    launches one.
    """

    name: str
    operations: dict[str, Callable[..., Any]]
    capturable: Collection[str] = ()
    prompts: Collection[str] = ()
    unusable: tuple[str, ...] = ()
    reasons_against: Callable[[str, OpCase], tuple[str, ...]] = _no_reasons
    expands: bool = False
    arranges: bool = False
    join: Callable[[Group, torch.device, int], Group] | None = None
    warmup_compile: WarmupCompile | None = None
