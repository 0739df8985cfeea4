"""Which backend computes which operation: resolved once at start, logged, never asked again.

Backends are lazy factories, so that an absent library costs nothing until it is asked for. `auto`
takes the first usable backend of the device's preference list per operation, and a backend's name
means that list from there on; an explicit choice that cannot work is refused with the reasons.
Fused operations follow from the choice of their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import cast

import torch

from atom.errors import ConfigError
from atom.model_ops.backends.composed import COMPOSED
from atom.model_ops.backends.interface import FUSED_OPS, OPS, Backend, Ops

_FACTORIES = {
    "native_cpu": "atom.model_ops.backends.native_cpu:backend",
    "torch_ref": "atom.model_ops.backends.torch_ref:backend",
    "torch_cpu": "atom.model_ops.backends.torch_cpu:backend",
    "triton": "atom.model_ops.backends.triton_ops:backend",
}
# First usable one wins, per device type.
_PREFERENCES: dict[str, tuple[str, ...]] = {
    "cpu": ("native_cpu", "torch_cpu", "torch_ref"),
    "cuda": ("triton", "torch_ref"),
    "rocm": ("triton", "torch_ref"),
}


@dataclass(frozen=True, slots=True)
class ResolvedOps:
    """ops: the operations to call; chosen: op → backend name, for people; uncapturable: those that
    keep a step from being captured into a graph."""

    ops: Ops
    chosen: dict[str, str]
    uncapturable: tuple[str, ...]


def resolve_ops(
    device_type: str,
    backend: str = "auto",
    overrides: dict[str, str] | None = None,
    dtypes: Collection[torch.dtype] = (),
) -> ResolvedOps:
    """Choose a backend per operation for a model and a KV cache of these dtypes. Raises
    `ConfigError` on an unknown or unusable choice."""
    overrides = overrides or {}
    for op in overrides:
        if op not in OPS:
            raise ConfigError(f"unknown operation {op!r}; operations: {', '.join(OPS)}")
    chosen: dict[str, str] = {}
    uncapturable: list[str] = []
    table: dict[str, Callable[..., object]] = {}
    names = _in_order(device_type, backend, dtypes)
    for op in OPS:
        provider = _first_usable(op, (overrides[op],) if op in overrides else names, dtypes)
        table[op], chosen[op] = provider.operations[op], provider.name
        if not provider.capturable:
            uncapturable.append(op)
    ops = SimpleNamespace(**table)
    for op, parts in FUSED_OPS.items():
        setattr(ops, op, _fused(op, {chosen[part] for part in parts}) or partial(COMPOSED[op], ops))
    return ResolvedOps(cast(Ops, ops), chosen, tuple(uncapturable))


def _fused(op: str, chosen_for_parts: set[str]) -> Callable[..., object] | None:
    """The fused operation of the backend that all of its parts were chosen from, if it has one."""
    if len(chosen_for_parts) > 1:
        return None
    return _load(chosen_for_parts.pop()).operations.get(op)


def _in_order(device_type: str, backend: str, dtypes: Collection[torch.dtype]) -> tuple[str, ...]:
    """The backends to ask for an operation, first to last. One that was asked for by name must be
    usable; what it does not provide comes from those that the device prefers less."""
    preferred = _PREFERENCES[device_type]
    if backend == "auto":
        return preferred
    reasons = _reasons_against(_load(backend), dtypes)
    if reasons:
        raise ConfigError(f"backend {backend}: {'; '.join(reasons)}; use auto or torch_ref")
    if backend in preferred:
        return preferred[preferred.index(backend) :]
    return (backend,)


def _first_usable(op: str, names: tuple[str, ...], dtypes: Collection[torch.dtype]) -> Backend:
    found: list[str] = []
    for name in names:
        backend = _load(name)
        reasons = _reasons_against(backend, dtypes)
        if not reasons and op in backend.operations:
            return backend
        found.append(f"{name}: {'; '.join(reasons) or f'does not provide {op}'}")
    raise ConfigError(f"no usable backend for {op} ({' | '.join(found)}); use torch_ref")


def _reasons_against(backend: Backend, dtypes: Collection[torch.dtype]) -> tuple[str, ...]:
    if backend.dtypes and not set(dtypes) <= set(backend.dtypes):
        made_for = f"made for {_names(backend.dtypes)}, not {_names(dtypes)}"
        return (*backend.unusable, made_for)
    return backend.unusable


def _names(dtypes: Collection[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in set(dtypes)))


def _load(name: str) -> Backend:
    if name not in _FACTORIES:
        raise ConfigError(f"unknown backend {name!r}; backends: {', '.join(_FACTORIES)}")
    module, function = _FACTORIES[name].split(":")
    return cast(Backend, getattr(import_module(module), function)())
