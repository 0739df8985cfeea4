"""The package `aiter` of one generation, in sys.modules for as long as it is installed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.support.fake_aiter import (
    experts,
    fp4,
    gemm,
    latent,
    norms,
    paged_decode,
    prefill,
    quant,
    ranks,
    rope_cache,
    routers,
)
from tests.support.fake_aiter.binding import Call, ContractError, bind
from tests.support.fake_aiter.checks import Checks
from tests.support.fake_aiter.record import Function, enums, functions, generations

GENERATIONS = generations()
# By the function's name without modules: its checks and its result, from checks and arguments.
_RESULTS: dict[str, Callable[..., Any]] = {
    name: result
    for module in (
        experts, fp4, gemm, latent, norms, paged_decode, prefill, quant, rope_cache, routers,
    )
    for name, result in module.RESULTS.items()
}  # fmt: skip


@dataclass
class FakeAiter:
    """calls: of the functions, in order."""

    generation: str
    architecture: str
    calls: list[Call] = field(default_factory=list)

    def called(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    def by_position(self, name: str) -> Any:
        """Call a function with Nones alone, and no keyword."""
        recorded = functions(self.generation)[name]
        assert recorded is not None
        return self.function(recorded)(*[None] * len(recorded.signature.parameters))

    def constructor(self, name: str) -> Callable[..., Any]:
        """Of a class, whose methods are bound by the record as functions are."""
        known = functions(self.generation)

        def check(method: str, **given: Any) -> dict[str, Any]:
            recorded = known[f"{name}.{method}" if method else name]
            if recorded is None:
                raise AttributeError(f"{name} has no {method} in {self.generation}")
            bound = bind(recorded, (), given)
            self.calls.append(bound)
            return bound.arguments

        return functools.partial(ranks.CLASSES[name], check, self.architecture)

    def function(self, recorded: Function) -> Callable[..., Any]:
        result = _RESULTS.get(recorded.name.rpartition(".")[2], _without_result)

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = bind(recorded, args, kwargs)
            self.calls.append(bound)
            return result(Checks(bound.name, self.architecture), **bound.arguments)

        functools.update_wrapper(call, result)
        del call.__wrapped__  # type: ignore[attr-defined]
        call.__signature__ = recorded.signature  # type: ignore[attr-defined]
        return call


def _without_result(checks: Checks, **arguments: Any) -> Any:
    raise ContractError(f"{checks.function}: the double knows its signature alone")


@contextmanager
def installed(
    generation: str, architecture: str = "gfx942", *, lacking: Sequence[str] = ()
) -> Iterator[FakeAiter]:
    """lacking: full names that this installation has not, beside what its generation lacks."""
    fake = FakeAiter(generation, architecture)
    before = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    for name in before:
        del sys.modules[name]
    root = _module("aiter")
    for name, kind in enums(generation).items():
        if f"aiter.{name}" not in lacking:
            setattr(root, name, kind)
    root.__version__ = generation  # type: ignore[attr-defined]
    for name, recorded in functions(generation).items():
        if recorded is None or name in lacking or name.rpartition(".")[0] in ranks.CLASSES:
            continue
        is_class = name in ranks.CLASSES
        _place(name, fake.constructor(name) if is_class else fake.function(recorded))
    try:
        yield fake
    finally:
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_ours(name: str) -> bool:
    return name == "aiter" or name.startswith("aiter.")


def _place(name: str, function: Callable[..., Any]) -> None:
    module, _, attribute = name.rpartition(".")
    if module == "aiter.tuned_gemm.tgemm":
        _module("aiter.tuned_gemm").tgemm = SimpleNamespace(mm=function)  # type: ignore[attr-defined]
        return
    setattr(_module(module), attribute, function)


def _module(name: str) -> ModuleType:
    found = sys.modules.get(name)
    if found is None:
        found = ModuleType(name)
        found.__spec__ = ModuleSpec(name, loader=None, is_package=True)
        found.__path__ = []
        sys.modules[name] = found
        parent, _, own = name.rpartition(".")
        if parent and not hasattr(_module(parent), own):
            setattr(_module(parent), own, found)
    return found
