"""BatchStore: the batches of all owners, each visible to its owner alone; in memory and on disk."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

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
        self._writing = asyncio.Lock()
        self._found = {batch.id: batch for batch in folder.batches()}

    async def add(self, owner: str, order: BatchOrder, window_seconds: int) -> BatchRecord:
        """Raises `RequestError`: 429 if too many batches are open, 507 if none can be written."""
        if len(self._found) >= self._most:
            self._make_room()
        now = int(self._clock())
        batch = BatchRecord(
            id=new_batch_id(),
            owner=owner,
            order=order,
            state=BatchState.VALIDATING,
            expires_at=now + window_seconds,
            times={BatchState.VALIDATING: now},
        )
        self._found[batch.id] = batch
        try:
            return await self._write(batch, batch)
        except RequestError:
            del self._found[batch.id]
            raise

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

    def enter(
        self, batch: BatchRecord, state: BatchState, **changes: object
    ) -> Awaitable[BatchRecord]:
        """Let a batch enter its next state, at once in memory, and on disk when it is awaited. If
        it cannot be written, the batch is in its earlier state again, except if it was
        cancelled."""
        before, batch = self._found[batch.id], batch.entering(state, int(self._clock()), **changes)
        self._found[batch.id] = batch
        return self._write(batch, batch if state is BatchState.CANCELLING else before)

    async def _write(self, batch: BatchRecord, before: BatchRecord) -> BatchRecord:
        """Write a batch's newest state. before: its state in memory if that fails. Raises
        `RequestError` (507) if it cannot be written."""
        async with self._writing:
            newest = self._found[batch.id]
            try:
                await on_thread(lambda: self._folder.write_batch(newest))
            except OSError as error:
                if self._found[batch.id] is batch:
                    self._found[batch.id] = before
                raise RequestError(
                    f"the batch cannot be kept: --batch-dir cannot be written ({error.strerror})",
                    status=507,
                    code=STORAGE_FULL,
                ) from error
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

    def now(self, batch_id: str) -> BatchRecord:
        """Return a batch as it is now."""
        return self._found[batch_id]

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
