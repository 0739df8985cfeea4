"""TraceDemand: the requests of a trace as a load, with its own times and shared beginnings.

Requests of a conversation come after the answers they wait for. All pods are simulated together,
since a trace has an order. Pure; the readers of files are the caller's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from atom.advisor.load import Countable
from atom.advisor.simulation import Due

_LARGEST_TOKEN = 2**31 - 1
_SHORT_SECONDS, _FEW_REQUESTS = 60.0, 100


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Describe one request. blocks: (scope, id) of the blocks of block_tokens that begin its
    prompt; equal ones have equal tokens."""

    due: Due
    input_tokens: int
    output_tokens: int
    blocks: tuple[tuple[str, int], ...]
    block_tokens: int


class TraceDemand:
    """Implements Demand for a trace."""

    def __init__(self, entries: Sequence[TraceEntry]) -> None:
        self._entries = entries

    @property
    def seconds(self) -> float:
        """Return the time between the first and the last arrival that the trace states."""
        times = [entry.due.at_seconds for entry in self._entries]
        return max(times) - min(times)

    @property
    def rate(self) -> float:
        return len(self._entries) / max(1.0, self.seconds)

    @property
    def input_tokens(self) -> float:
        return sum(entry.input_tokens for entry in self._entries) / len(self._entries)

    @property
    def output_tokens(self) -> float:
        return sum(entry.output_tokens for entry in self._entries) / len(self._entries)

    @property
    def computed_tokens(self) -> float:
        """Count each block once, as an endless cache would."""
        seen: set[tuple[str, int]] = set()
        computed = 0
        for entry in self._entries:
            new = [block for block in entry.blocks if block not in seen]
            seen.update(new)
            known = (len(entry.blocks) - len(new)) * entry.block_tokens
            computed += max(1, entry.input_tokens - known)
        return computed / len(self._entries)

    @property
    def longest(self) -> int:
        return max(entry.input_tokens + entry.output_tokens for entry in self._entries)

    @property
    def notes(self) -> tuple[str, ...]:
        found = []
        if self.seconds < _SHORT_SECONDS:
            found.append(
                f"the trace spans {self.seconds:,.1f} s: less than a minute shows how a server "
                "starts, not how it keeps on; give a longer trace, or --load with its rate"
            )
        if len(self._entries) < _FEW_REQUESTS:
            found.append(
                f"the trace has {len(self._entries)} requests: percentiles of so few are coarse"
            )
        return tuple(found)

    def share(self, pods: int, scale: float) -> tuple[Countable, int]:
        """Return the whole trace, sped up by `scale`, which all pods serve."""
        return TraceLoad([_sped_up(entry, scale) for entry in self._entries]), pods


class TraceLoad:
    """Implements Load for a trace."""

    def __init__(self, entries: Sequence[TraceEntry]) -> None:
        self._entries = entries
        self.dues: Sequence[Due] = [entry.due for entry in entries]

    def prompt(self, place: int) -> list[int]:
        """Make a prompt: its blocks, cut to its length, and its own tokens behind them."""
        entry = self._entries[place]
        tokens: list[int] = []
        for scope, number in entry.blocks:
            tokens += _tokens(f"{scope} {number}", entry.block_tokens)
        tokens = tokens[: entry.input_tokens]
        return tokens + _tokens(f"own {place}", entry.input_tokens - len(tokens))

    def output_tokens(self, place: int) -> int:
        return self._entries[place].output_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(entry.input_tokens for entry in self._entries)


def _sped_up(entry: TraceEntry, scale: float) -> TraceEntry:
    due = entry.due
    return replace(entry, due=Due(due.at_seconds / scale, due.after, due.delay_seconds / scale))


def _tokens(key: str, count: int) -> list[int]:
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
    draw = np.random.default_rng(seed)
    return draw.integers(_LARGEST_TOKEN, size=count).tolist()  # type: ignore[no-any-return]
