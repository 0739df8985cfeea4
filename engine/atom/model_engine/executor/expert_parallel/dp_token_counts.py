"""DPTokenCounts: the all-gather of the ranks' token counts before a step that they compute
together.

Each data-parallel rank sends one count for each step, its number of tokens, while the previous step
is still computed. With every rank's count each rank has the same knowledge, and all pad alike. An
idle rank sleeps without sending until another rank's count wakes it: then it sends 0 and runs a
dummy batch. So there is no step without tokens, no agreement at the end of work, and no other
message. Pure: the counts travel by wire/peer_mesh.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from atom.errors import AtomError
from atom.model_engine.wire.peer_mesh import TokenCount


class DPTokenCountsError(AtomError):
    """Report that ranks are out of step with each other: a fault of ours."""


@dataclass(frozen=True, slots=True)
class DPMetadata:
    """The size of a step, which all ranks know. capacity: tokens that each rank sends to every
    other, padding included; None if they exceed the largest bucket, and are sent only to the ranks
    that need them."""

    step: int
    capacity: int | None


class DPTokenCounts:
    """Track the token counts of one rank and its peers. buckets: sizes that steps of few tokens are
    padded to, ascending, equal on every rank."""

    def __init__(self, rank: int, size: int, buckets: Sequence[int]) -> None:
        self._rank = rank
        self._buckets = buckets
        self.step = 0  # the next whose counts are gathered
        self._peers = frozenset(range(size)) - {rank}
        self._counts: dict[int, dict[int, int]] = {}  # step → rank → tokens

    def contribute(self, tokens: int) -> TokenCount:
        """Note this rank's token count for the next step, and make the message of it."""
        self._counts.setdefault(self.step, {})[self._rank] = tokens
        return TokenCount(self.step, tokens)

    def receive(self, peer: int, count: TokenCount) -> None:
        """Take another rank's count; it is for the next step, or, from a rank that had everyone's
        counts earlier, for the step after it. Raises `DPTokenCountsError` for any other step."""
        said = self._counts.setdefault(count.step, {})
        if peer in said or not 0 <= count.step - self.step <= 1:
            raise DPTokenCountsError(
                f"rank {peer} sent a token count for step {count.step}, "
                f"rank {self._rank} is at {self.step}"
            )
        said[peer] = count.tokens

    @property
    def is_called(self) -> bool:
        """Return whether another rank has tokens for the next step."""
        return any(self._counts.get(self.step, {}).values())

    @property
    def missing(self) -> frozenset[int]:
        """List the ranks whose count for the next step has not come."""
        return self._peers - self._counts.get(self.step, {}).keys()

    def complete(self) -> DPMetadata:
        """Complete the step with the counts of all ranks, and advance to the next one."""
        counts = self._counts.pop(self.step)
        assert len(counts) == len(self._peers) + 1, "every rank's count is there"
        metadata = DPMetadata(self.step, self._capacity(max(counts.values())))
        self.step += 1
        return metadata

    def _capacity(self, most: int) -> int | None:
        at = bisect_left(self._buckets, most)
        return self._buckets[at] if at < len(self._buckets) else None
