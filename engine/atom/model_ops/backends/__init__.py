"""Select the backend of each operation: once at start, before weights are read.

Backends are lazy factories, so an absent library costs nothing until it is requested. `auto` takes
the first usable backend of the device's preference list per operation; a backend's name means that
list from there on. An explicit choice that cannot work is refused with the reasons. A preferred
backend that is passed over is one line of the log, with the reasons. The choice of fused operations
follows from the choice of their parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import cast

import torch

from atom.collectives.group import Group
from atom.errors import ConfigError
from atom.model_ops.backends.backend import Backend, WarmupCompile
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_case import LoraMatrices, OpCase
from atom.model_ops.backends.op_names import (
    ATTENTION_OPS,
    FUSED_OPS,
    LORA_OPS,
    OPS,
    PAIRED_OPS,
)

logger = logging.getLogger(__name__)

_FACTORIES = {
    "native_cpu": "atom.model_ops.backends.native_cpu:backend",
    "torch_ref": "atom.model_ops.backends.torch_ref:backend",
    "torch_cpu": "atom.model_ops.backends.torch_cpu:backend",
    "triton": "atom.model_ops.backends.triton_ops:backend",
    "batch_invariant": "atom.model_ops.backends.batch_invariant:backend",
    "aiter": "atom.model_ops.backends.aiter_ops:backend",
    "batch_invariant_cpu": "atom.model_ops.backends.batch_invariant_cpu:backend",
}
# First usable one wins, per device type.
_PREFERENCES: dict[str, tuple[str, ...]] = {
    "cpu": ("native_cpu", "torch_cpu", "torch_ref"),
    "cuda": ("triton", "torch_ref"),
    "rocm": ("aiter", "triton", "torch_ref"),
}
# Of reproducible runs: no other's operations fall in.
_REPRODUCIBLE = {
    "cpu": "batch_invariant_cpu",
    "cuda": "batch_invariant",
    "rocm": "batch_invariant",
}


@dataclass(frozen=True, slots=True)
class ResolvedOps:
    """The operations that were chosen for a model on a device. ops: the operations to call; chosen:
    op → backend name, for people; uncapturable: operations that prevent the capture of a step into
    a graph, uncapturable_prompts: of a step with prompts, captures_lora: whether one with adapters
    may be captured; expands: quantised matrices become plain ones when they are prepared; join:
    opens the ranks' communication in norms, if it is not torch's; warmup_compile: compiles kernels
    ahead, if a single backend has any."""

    ops: Ops
    chosen: dict[str, str]
    uncapturable: tuple[str, ...]
    uncapturable_prompts: tuple[str, ...]
    captures_lora: bool
    expands: bool
    join: Callable[[Group, torch.device, int], Group] | None
    warmup_compile: WarmupCompile | None


def resolve_ops(
    device_type: str,
    case: OpCase,
    backend: str = "auto",
    overrides: dict[str, str] | None = None,
) -> ResolvedOps:
    """Choose a backend per operation for what `case` asks. Raises `ConfigError` on an unknown or
    unusable choice."""
    overrides = overrides or {}
    for op in overrides:
        if op not in OPS:
            raise ConfigError(f"unknown operation {op!r}; operations: {', '.join(OPS)}")
    names = _in_order(device_type, backend)
    search = _Search(case, overrides, cache(load_backend))
    chosen = {op: search.first_usable(op, names) for op in OPS}
    _require_pairs({op: found for op, found in chosen.items() if case.asks_for(op)})
    for why, ops_of in search.passed_over.items():
        logger.info("%s: computed by another backend: %s", why, ", ".join(ops_of))
    return _resolved(chosen, case)


def resolve_reproducible_ops(device_type: str, case: OpCase) -> ResolvedOps:
    """Select the device's batch-invariant backend for all operations that a model needs. Raises
    `ConfigError` for an operation without a kernel of fixed order."""
    backend = load_backend(_REPRODUCIBLE[device_type])
    if backend.unusable:
        raise ConfigError(
            f"reproducible: backend {backend.name}: {'; '.join(backend.unusable)}; "
            "drop --reproducible"
        )
    problems = {}
    for op in filter(case.needs, OPS):
        reasons = backend.reasons_against(op, case)
        if op not in backend.operations:
            reasons = ("there is no kernel of fixed order",)
        if reasons:
            problems[op] = "; ".join(reasons)
    if problems:
        found = " | ".join(f"{op}: {why}" for op, why in problems.items())
        raise ConfigError(f"reproducible: {found}; drop --reproducible")
    return _resolved(dict.fromkeys(filter(case.needs, OPS), backend), case)


def _resolved(chosen: dict[str, Backend], case: OpCase) -> ResolvedOps:
    """Join the chosen operations into `ResolvedOps`. The model never calls the others."""
    ops = SimpleNamespace(**{op: provider.operations[op] for op, provider in chosen.items()})
    composed = ComposedOps(cast(Ops, ops))
    for op, parts in FUSED_OPS.items():
        if not chosen.keys() >= set(parts):
            continue
        providers = {chosen[part].name: chosen[part] for part in parts}
        fused = _fused(op, list(providers.values()), case)
        setattr(ops, op, fused or getattr(composed, op))
    return ResolvedOps(
        ops=cast(Ops, ops),
        chosen={op: provider.name for op, provider in chosen.items()},
        uncapturable=tuple(
            op
            for op, provider in chosen.items()
            if case.asks_for(op) and op not in (*provider.capturable, *LORA_OPS)
        ),
        uncapturable_prompts=tuple(
            op
            for op in ATTENTION_OPS
            if op in chosen and case.asks_for(op) and op not in chosen[op].prompts
        ),
        captures_lora=case.lora is not LoraMatrices.NONE
        and all(op in chosen[op].capturable for op in LORA_OPS if case.asks_for(op)),
        expands=chosen["prepare_linear"].expands,
        join=chosen["norm"].join,
        warmup_compile=_warmup_compile(chosen.values()),
    )


def _warmup_compile(chosen: Iterable[Backend]) -> WarmupCompile | None:
    """Return the way to compile kernels ahead; None if several backends are chosen, since the
    warm-up skips only one backend's kernels."""
    backends = {backend.name: backend for backend in chosen}
    backends.pop("torch_ref", None)
    return next(iter(backends.values())).warmup_compile if len(backends) == 1 else None


def _fused(op: str, providers: list[Backend], case: OpCase) -> Callable[..., object] | None:
    """Return the fused operation of the backend that all of its parts were chosen from, if it has
    one."""
    if len(providers) > 1 or providers[0].reasons_against(op, case):
        return None
    return providers[0].operations.get(op)


def _in_order(device_type: str, backend: str) -> tuple[str, ...]:
    """Return the backends to try for an operation, first to last. A backend given by name must be
    usable; the operations that it lacks come from those that the device prefers less."""
    preferred = _PREFERENCES[device_type]
    if backend == "auto":
        return preferred
    reasons = load_backend(backend).unusable
    if reasons:
        raise ConfigError(f"backend {backend}: {'; '.join(reasons)}; use auto or torch_ref")
    if backend in preferred:
        return preferred[preferred.index(backend) :]
    return (backend,)


class _Search:
    """A search for the usable backends of a case. passed_over: backend and reasons → operations."""

    def __init__(
        self, case: OpCase, overrides: dict[str, str], load: Callable[[str], Backend]
    ) -> None:
        self._case = case
        self._overrides = overrides
        self._load = load
        self.passed_over: dict[str, list[str]] = {}

    def first_usable(self, op: str, names: tuple[str, ...]) -> Backend:
        found: list[str] = []
        for name in (self._overrides[op],) if op in self._overrides else names:
            backend = self._load(name)
            reasons = backend.unusable or self._reasons_against(op, backend)
            if not reasons and op in backend.operations:
                return backend
            why = f"backend {name}: {'; '.join(reasons) or f'does not provide {op}'}"
            found.append(why)
            if reasons:
                self.passed_over.setdefault(why, []).append(op)
        raise ConfigError(
            f"no usable backend for {op} ({' | '.join(found)}); use --op-backend {op}=torch_ref"
        )

    def _reasons_against(self, op: str, backend: Backend) -> tuple[str, ...]:
        """Return the backend's own reasons, and, if other backends cannot read its arrangement,
        those against the operations that op is paired with."""
        reasons = backend.reasons_against(op, self._case)
        if reasons or not backend.arranges:
            return reasons
        for other in filter(self._case.asks_for, _partners(op)):
            given = self._overrides.get(other, backend.name)
            if given != backend.name:
                return (f"{other} is {given}'s, which reads another arrangement",)
            reasons += backend.reasons_against(other, self._case)
            if self._case.asks_for(other) and other not in backend.operations:
                reasons += (f"it does not provide {other}, which reads what it arranges",)
        return reasons


def _partners(op: str) -> tuple[str, ...]:
    return tuple(other for pair in PAIRED_OPS if op in pair for other in pair if other != op)


def _require_pairs(chosen: dict[str, Backend]) -> None:
    """Refuse an override that splits a pair of operations whose backend has its own arrangement."""
    for first, second in PAIRED_OPS:
        if not {first, second} <= chosen.keys():
            continue
        one, other = chosen[first], chosen[second]
        if one.name != other.name and (one.arranges or other.arranges):
            name = one.name if one.arranges else other.name
            raise ConfigError(
                f"{first} of backend {one.name} and {second} of {other.name}: {name} has an "
                f"arrangement of its own; give both or neither to it with --op-backend"
            )


def load_backend(name: str) -> Backend:
    """Load a backend. Raises `ConfigError` for an unknown name."""
    if name not in _FACTORIES:
        raise ConfigError(f"unknown backend {name!r}; backends: {', '.join(_FACTORIES)}")
    module, function = _FACTORIES[name].split(":")
    return cast(Backend, getattr(import_module(module), function)())
