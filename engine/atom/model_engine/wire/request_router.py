"""RequestRouter: which data-parallel rank serves a request, and which ranks serve what.

Pure bookkeeping without sockets or threads; CoreManager calls it under its own lock. A request
stays on its rank from the first token to the last, since its KV cache does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atom.config import RoutingPolicy
from atom.model_engine.request import Request

# Most clients allow far longer answers than they get: without a bound, one request that names no
# limit would weigh as much as thousands that name a small one.
_ANSWER_TOKENS_COUNTED = 512


@dataclass(frozen=True, slots=True)
class _Placed:
    rank: int
    tokens: int


class RequestRouter:
    """Routes requests to ranks. `first_rank` gets the first request when all are equal, so that
    several routers of one engine do not all begin with the same rank."""

    def __init__(self, ranks: int, policy: RoutingPolicy, *, first_rank: int = 0) -> None:
        self._policy = policy
        self._outstanding_tokens = [0] * ranks
        self._next_rank = first_rank % ranks
        self._placed: dict[int, _Placed] = {}
        self._lost: set[int] = set()

    def place(self, request: Request) -> int:
        """Choose the rank to serve `request`, which is open from now on."""
        turns = self._turns()
        rank = turns[0]
        if self._policy == "least_tokens":
            rank = min(turns, key=self._outstanding_tokens.__getitem__)
        self._next_rank = (rank + 1) % len(self._outstanding_tokens)
        tokens = _tokens_of(request)
        self._outstanding_tokens[rank] += tokens
        self._placed[request.id] = _Placed(rank, tokens)
        return rank

    def _turns(self) -> list[int]:
        """Order the remaining ranks by whose turn it is; ties rotate, so that equal ranks take
        turns."""
        count = len(self._outstanding_tokens)
        turns = ((self._next_rank + turn) % count for turn in range(count))
        return [rank for rank in turns if rank not in self._lost]

    def lose(self, rank: int) -> list[int]:
        """Place nothing at a rank any more; the open requests that it served, which end."""
        self._lost.add(rank)
        found = [number for number, placed in self._placed.items() if placed.rank == rank]
        for number in found:
            self.release(number)
        return found

    def by_rank(self, request_ids: Iterable[int]) -> dict[int, list[int]]:
        """Group the open requests among these by the rank that serves them."""
        found: dict[int, list[int]] = {}
        for request_id in request_ids:
            placed = self._placed.get(request_id)
            if placed is not None:
                found.setdefault(placed.rank, []).append(request_id)
        return found

    def release(self, request_id: int) -> None:
        """Release a request that has ended; unknown ids are ignored."""
        placed = self._placed.pop(request_id, None)
        if placed is not None:
            self._outstanding_tokens[placed.rank] -= placed.tokens


def _tokens_of(request: Request) -> int:
    prompt_tokens = len(request.prompt_token_ids)
    return prompt_tokens + min(request.max_total_tokens - prompt_tokens, _ANSWER_TOKENS_COUNTED)
