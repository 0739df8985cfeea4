"""GraphPool: captures steps into graphs that share one memory pool.

Each step runs once on a side stream before its capture, so that kernels are compiled and libraries
have their workspaces. The only place that records graphs: tests replace graphs by functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")

# Captures from which the rest is estimated.
_MEASURED = 5


class Graph(Protocol):
    def replay(self) -> None:
        """Run the captured kernels again, writing to the tensors of the capture."""


class GraphPool:
    def __init__(self, pool: tuple[int, int] | None = None) -> None:
        """pool: torch's handle of the memory that all graphs share; None for that of the first."""
        self._pool: Any = pool

    def capture(self, call: Callable[[], T]) -> tuple[Graph, T]:
        """Capture the call as a graph; return it with the call's result: tensors that a replay
        fills."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = call()
        self._pool = self._pool or graph.pool()
        return graph, result

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the body on a side stream, as graph capture requires."""
        stream = _side_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream().wait_stream(stream)


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the process's side stream; one for all, since libraries keep a workspace per
    stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def measured_bytes(kinds: Sequence[Sequence[Callable[[], object]]]) -> int:
    """Estimate the device bytes of all captures from the first few of each kind, largest first:
    these hold the pool that the others share. Do not replay their graphs."""
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
    """Return the device's free bytes, including torch's cached ones."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
