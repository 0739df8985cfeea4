"""ThreadWorld: ranks that share experts as threads of one process, without torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_PATIENCE_SECONDS = 20.0


class ThreadWorld:
    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=_PATIENCE_SECONDS)
        self._board: list[Any] = [None] * size

    def everyone(self, rank: int, value: Any) -> list[Any]:
        """What each rank has said in this round."""
        self._board[rank] = value
        self._barrier.wait()
        said = list(self._board)
        self._barrier.wait()
        return said

    def run(self, each: Callable[[ThreadLinks], Result]) -> list[Result]:
        """Call it on every rank at once; their results."""
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = each(ThreadLinks(self, rank))
            except Exception as error:
                results[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [result for result in results if isinstance(result, Exception)]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return results


class ThreadLinks:
    """`ExpertLinks` of one of the threads."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size

    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.world.everyone(self.rank, x))

    def scatter_sums(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.stack(self.world.everyone(self.rank, x)).sum(dim=0)
        return total.chunk(self.size)[self.rank]

    def sum_counts(self, counts: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.world.everyone(self.rank, counts)).sum(dim=0)

    def exchange_counts(self, counts: Sequence[int]) -> list[int]:
        return [told[self.rank] for told in self.world.everyone(self.rank, list(counts))]

    def exchange(
        self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        parts = self.world.everyone(self.rank, x.split(list(sent)))
        own = [part[self.rank] for part in parts]
        assert [len(part) for part in own] == list(received)
        return torch.cat(own)
