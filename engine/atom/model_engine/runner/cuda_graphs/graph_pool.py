"""GraphPool: captures what a step computes into graphs that share one pool of memory.

What is captured runs once aside before it, so that kernels are compiled and libraries have their
workspaces. The only place that records graphs: tests play them by functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")

# Captures that tell what the rest will take.
_MEASURED = 5


class Graph(Protocol):
    def replay(self) -> None:
        """Compute what was captured anew, into the tensors of its capture."""


class GraphPool:
    def __init__(self, pool: tuple[int, int] | None = None) -> None:
        """pool: torch's handle of the memory that all graphs share; None for that of the first."""
        self._pool: Any = pool

    def capture(self, call: Callable[[], T]) -> tuple[Graph, T]:
        """The call as a graph, and what it gave: tensors that a replay fills."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = call()
        self._pool = self._pool or graph.pool()
        return graph, result

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run what is to be captured on a stream of its own, as captures want it."""
        stream = _side_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream().wait_stream(stream)


@cache
def _side_stream() -> torch.cuda.Stream:
    """Make the one stream of a process: libraries keep a workspace for every stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def measured_bytes(kinds: Sequence[Sequence[Callable[[], object]]]) -> int:
    """Return what all captures will take of the device's memory, from the first few of each kind,
    largest first: these hold the pool that the others share. Their graphs are not to be
    replayed."""
    kept: list[object] = []  # a pool ends with its last graph
    return sum(_measured_kind(captures, kept) for captures in kinds)


def _measured_kind(captures: Sequence[Callable[[], object]], kept: list[object]) -> int:
    if not captures:
        return 0
    free = [_free_bytes()]
    for capture in captures[:_MEASURED]:
        kept.append(capture())
        free.append(_free_bytes())
    first, others = free[0] - free[1], free[1] - free[-1]
    each = others / (len(free) - 2) if len(free) > 2 else 0
    return int(first + each * (len(captures) - 1))


def _free_bytes() -> int:
    """Measure the device's free bytes, beside what torch only keeps for reuse."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
