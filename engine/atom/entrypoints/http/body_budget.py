"""BodyBudget: a bound on the memory of all requests' bodies while they are read and parsed.

body.py bounds each body; this bounds all of them, because their senders choose how long they take.
A body holds its received bytes until its request is queued. Small bodies need no budget, so that
large ones keep no other client from asking. One per HTTP process; belongs to its event loop.
"""

from __future__ import annotations

from atom.errors import RequestError

SMALL_BODY_BYTES = 64 * 1024
MAX_BODY_BYTES = 8 * 2**20
MAX_BODY_BYTES_WITH_IMAGES = 32 * 2**20
DEFAULT_BYTES = 256 * 2**20


class BodyShare:
    """Hold one body's bytes of a budget, released at the end of the context. most_tokens: of a
    prompt that the model takes; None while that is unknown. most_bytes: of the body."""

    def __init__(
        self,
        budget: BodyBudget,
        most_tokens: int | None = None,
        *,
        most_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._budget = budget
        self.most_tokens = most_tokens
        self.most_bytes = most_bytes
        self.held_bytes = 0

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(self, *error: object) -> None:
        self.grow(0)

    def grow(self, size_bytes: int) -> None:
        """Reserve memory for the bytes received so far. Raises `RequestError` (503) if there is no
        room; the earlier reservation stays."""
        wanted = size_bytes if size_bytes > SMALL_BODY_BYTES else 0
        if wanted != self.held_bytes:
            self._budget.change(wanted - self.held_bytes)
            self.held_bytes = wanted


class BodyBudget:
    def __init__(self, most_bytes: int = DEFAULT_BYTES) -> None:
        """most_bytes: 0 for no bound."""
        self._most_bytes = most_bytes
        self.held_bytes = 0

    def share(
        self, most_tokens: int | None = None, *, most_bytes: int = MAX_BODY_BYTES
    ) -> BodyShare:
        """Open a share of the budget for one body. most_bytes: of the body."""
        return BodyShare(self, most_tokens, most_bytes=most_bytes)

    def change(self, size_bytes: int) -> None:
        """Change the reserved bytes. Raises `RequestError` (503) past the bound."""
        held_bytes = self.held_bytes + size_bytes
        if self._most_bytes and size_bytes > 0 and held_bytes > self._most_bytes:
            raise RequestError(
                f"other requests' bodies take all of the {self._most_bytes // 2**20} MiB that this "
                f"server reads at once; send it again in a moment (a body of up to "
                f"{SMALL_BODY_BYTES // 1024} KiB is always read)",
                status=503,
                code="bodies_too_large",
            )
        self.held_bytes = held_bytes
