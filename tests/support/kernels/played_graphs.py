"""Graphs that are played by functions: a replay computes anew, into the tensors of the capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from atom.model_engine.runner.cuda_graphs.graph_pool import Graph, GraphPool

T = TypeVar("T")


@dataclass
class PlayedGraph:
    pool: PlayedPool
    name: str
    call: Callable[[], Any]
    given: Any

    def replay(self) -> None:
        self.pool.replays[self.name] += 1
        for kept, new in zip(tensors(self.given), tensors(self.call()), strict=True):
            kept.copy_(new)


class PlayedPool(GraphPool):
    """replays: by the name of what was captured; restore: called once it ran to be captured, which
    changes what is kept of slots."""

    def __init__(self, restore: Callable[[], object]) -> None:
        super().__init__()
        self._restore = restore
        self.replays: Counter[str] = Counter()

    def capture(self, call: Callable[[], T]) -> tuple[Graph, T]:
        given = call()
        self._restore()
        function: Any = call.func if isinstance(call, partial) else call
        return PlayedGraph(self, function.__qualname__, call, given), given

    @contextmanager
    def aside(self) -> Iterator[None]:
        yield
        self._restore()


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of nested dataclasses and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
