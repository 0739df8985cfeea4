"""Kernels that compute one number wrong, put in the place of a backend's right ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.model_ops import backends


def break_kernel(monkeypatch: pytest.MonkeyPatch, backend: str, op: str, number: int) -> None:
    """Let an operation of a backend give one wrong number each call; `number` draws which one."""
    load = backends.load_backend

    def loaded(name: str) -> Any:
        found = load(name)
        if name != backend:
            return found
        kernel = found.operations[op]
        return replace(found, operations={**found.operations, op: _wrong(kernel, number)})

    monkeypatch.setattr(backends, "load_backend", loaded)


def _wrong(kernel: Callable[..., Any], number: int) -> Callable[..., Any]:
    def broken(*args: Any) -> Any:
        out = kernel(*args)
        results = list(_tensors(args[0] if out is None else out))
        result = results[number % len(results)]
        last = result.view(-1)[-1:] if result.is_contiguous() else result.flatten()[-1:]
        if result.is_floating_point():
            row = result[-1]
            row += 0.1 * (row.abs().amax() + 1.0)
        else:
            last += 1
        return out

    return broken


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _tensors(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))
