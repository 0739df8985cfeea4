"""BatchStore: the batches of all owners, each visible to its owner alone; in memory and on disk.

The disk decides, since other servers may use the folder: `refresh` reads it, and a change is made
to the state that is on disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from atom.entrypoints.http.errors import shortened
from atom.entrypoints.request_lines.on_thread import on_thread
from atom.entrypoints.stored_batches.batch_folder import BatchFolder
from atom.entrypoints.stored_batches.file_store import STORAGE_FULL
from atom.entrypoints.stored_batches.records import (
    BatchOrder,
    BatchRecord,
    BatchState,
    new_batch_id,
)
from atom.errors import RequestError


class BatchStore:
    def __init__(self, folder: BatchFolder, most_batches: int, clock: Callable[[], float]) -> None:
        """most_batches: that are kept; the oldest that have ended make room. clock: Unix time."""
        self._folder = folder
        self._most = most_batches
        self._clock = clock
        self._changing = asyncio.Lock()
        self._cancelled: set[str] = set()  # which is not on disk yet
        self._found = {batch.id: batch for batch in folder.batches()}

    async def add(self, owner: str, order: BatchOrder, window_seconds: int) -> BatchRecord:
        """Raises `RequestError`: 429 if too many batches are open, 507 if none can be written."""
        now = int(self._clock())
        batch = BatchRecord(
            id=new_batch_id(),
            owner=owner,
            order=order,
            state=BatchState.VALIDATING,
            expires_at=now + window_seconds,
            times={BatchState.VALIDATING: now},
        )
        async with self._changing:
            if len(self._found) >= self._most:
                self._make_room()
            try:
                has_input = await on_thread(lambda: self._folder.add_batch(batch))
            except OSError as error:
                raise _unwritable(error) from error
            if not has_input:
                raise RequestError(
                    f"input_file_id: the file {order.input_file_id} was deleted; upload it again",
                    status=404,
                    param="input_file_id",
                    code="file_not_found",
                )
            self._found[batch.id] = batch
        return batch

    def _make_room(self) -> None:
        ended = [batch for batch in self._found.values() if not batch.is_open]
        if not ended:
            raise RequestError(
                f"{self._most} batches are open (--batch-max-files); wait for some of them, or "
                "cancel them",
                status=429,
                code="rate_limit_exceeded",
            )
        oldest = min(ended, key=lambda batch: (batch.created_at, batch.id))
        self._folder.remove_batch(oldest.id)
        del self._found[oldest.id]

    async def refresh(self) -> None:
        """Read the batches that other servers changed. Raises `ConfigError`."""
        async with self._changing:
            self._found = {each.id: each for each in await on_thread(self._folder.batches)}

    async def enter(self, batch: BatchRecord, state: BatchState, **changes: object) -> BatchRecord:
        """Let a batch enter its next state, unless it was cancelled or has ended: returns its
        state then. Raises `RequestError` (507) if it cannot be written."""

        def entering(now: BatchRecord) -> BatchRecord:
            if now.is_open and batch.id in self._cancelled:
                now = self._cancelling(now)
            cancelled = now.state is BatchState.CANCELLING and state is not BatchState.CANCELLED
            if cancelled or not now.is_open:
                return now
            return now.entering(state, int(self._clock()), **changes)

        return await self._change(batch.id, entering)

    async def cancel(self, batch: BatchRecord) -> BatchRecord:
        """Let a batch end, with its answers so far. Raises `RequestError`: 409 if it ends already,
        and 507 if that cannot be written; it is cancelled in memory then."""

        def cancelling(now: BatchRecord) -> BatchRecord:
            if not now.is_open or now.state is BatchState.FINALIZING:
                raise RequestError(
                    f"the batch is {now.state} and cannot be cancelled any more", status=409
                )
            self._cancelled.add(batch.id)
            return self._cancelling(now)

        return await self._change(batch.id, cancelling)

    def _cancelling(self, batch: BatchRecord) -> BatchRecord:
        if batch.state is BatchState.CANCELLING:
            return batch
        return batch.entering(BatchState.CANCELLING, int(self._clock()))

    def is_cancelled(self, batch_id: str) -> bool:
        """Return whether a client asked to cancel an open batch, of this server or of another."""
        batch = self._found.get(batch_id)
        is_known = batch is not None and batch.state is BatchState.CANCELLING
        return is_known or batch_id in self._cancelled

    async def _change(
        self, batch_id: str, change: Callable[[BatchRecord], BatchRecord]
    ) -> BatchRecord:
        async with self._changing:
            try:
                batch = await on_thread(lambda: self._folder.change_batch(batch_id, change))
            except OSError as error:
                raise _unwritable(error) from error
            self._found[batch_id] = batch
            self._cancelled.discard(batch_id)
        return batch

    def get(self, batch_id: str, owner: str) -> BatchRecord:
        """Raises `RequestError` (404) for a batch that is not there or is another owner's."""
        batch = self._found.get(batch_id)
        if batch is None or batch.owner != owner:
            raise RequestError(
                f"there is no batch {shortened(batch_id)!r}: it made room for later ones "
                "(--batch-max-files), or is another key's; GET /v1/batches lists yours",
                status=404,
                code="batch_not_found",
            )
        return batch

    def find(self, batch_id: str) -> BatchRecord | None:
        """Return a batch as it is now; None if it made room for later ones."""
        return self._found.get(batch_id)

    def of(self, owner: str) -> list[BatchRecord]:
        """List an owner's batches, the newest first."""
        batches = [batch for batch in self._found.values() if batch.owner == owner]
        return sorted(batches, key=lambda batch: (batch.created_at, batch.id), reverse=True)

    def open(self) -> list[BatchRecord]:
        """List the batches that have not ended, the oldest first."""
        found = [batch for batch in self._found.values() if batch.is_open]
        return sorted(found, key=lambda batch: (batch.created_at, batch.id))

    def states(self) -> Counter[BatchState]:
        return Counter(batch.state for batch in self._found.values())


def _unwritable(error: OSError) -> RequestError:
    return RequestError(
        f"the batch cannot be kept: --batch-dir cannot be written ({error.strerror})",
        status=507,
        code=STORAGE_FULL,
    )
