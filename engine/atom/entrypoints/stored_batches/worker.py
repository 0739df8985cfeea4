"""BatchWorker: answers the open batches of all owners, each owner's one after the other.

    validating ──> in_progress ──> finalizing ──> completed | expired | failed
         └──> failed     └── cancelling ──> cancelled

Each state is on disk before the worker acts on it, and each step may be done again, so that a
server which ends at any moment goes on at its next start. A request is the same POST that a client
sends, through the same routes with the same checks. It is of a group of clients that gets only the
time that all others leave, and it has the lowest priority. Belongs to the server's event loop.

Several servers may use one folder. The one that claims an owner answers the owner's next batch; the
others look each second whether the claim is free, as it is once that server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from atom.client_label import batch_label
from atom.entrypoints.http.errors import LEAST_ERROR
from atom.entrypoints.request_lines.batch_lines import BatchRequest, lines_of, read_request
from atom.entrypoints.request_lines.line_run import BatchCounts, LineRun, LineTurns
from atom.entrypoints.request_lines.on_thread import on_thread
from atom.entrypoints.stored_batches.batch_answers import BatchAnswers, Ended
from atom.entrypoints.stored_batches.batch_store import BatchStore
from atom.entrypoints.stored_batches.file_store import STORAGE_FULL, FileStore
from atom.entrypoints.stored_batches.line_check import MOST_LINE_BYTES, check_lines
from atom.entrypoints.stored_batches.records import BatchRecord, BatchState, Problem
from atom.errors import AtomError, RequestError
from atom.model_engine.request import MAX_PRIORITY

logger = logging.getLogger(__name__)

_MOST_RUNNING = 8  # batches, of as many owners
_MOST_LINE_BYTES_HELD = 64 * 2**20
_SWEEP_SECONDS = 60.0
_LOOK_SECONDS = 1.0  # for what other servers of the folder did
_ASK_AGAIN = frozenset({429, 503})
_MOST_TRIES = 8  # of a request that a server which is ready refuses for now
_LONGEST_PAUSE_SECONDS = 30.0

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
Post = Callable[[str, bytes, str], Awaitable[tuple[int, bytes]]]


@dataclass(frozen=True, slots=True)
class Door:
    """The server's routes. post: path, body and client label to status and body. is_ready: whether
    the server takes requests now."""

    post: Post
    is_ready: Callable[[], bool]


class BatchWorker:
    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        door: Door,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """clock: Unix seconds; pause: waits for so many seconds."""
        self._files, self._batches, self._door = files, batches, door
        self._clock, self._pause = clock, pause
        self._turns = LineTurns(files.options.at_once, _MOST_LINE_BYTES_HELD)
        self._changed = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._claims: dict[str, tuple[str, int]] = {}  # by batch: its owner, and what holds it
        self._lines: dict[str, asyncio.Future[None]] = {}
        self._counts: dict[str, BatchCounts] = {}
        self._broken: dict[str, float] = {}  # until that moment of the event loop's clock
        self.requests: Counter[str] = Counter()  # by their outcome

    # ---- the routes' side ---------------------------------------------------------------------

    def added(self) -> None:
        """Look for batches that were added."""
        self._changed.set()

    async def cancel(self, batch: BatchRecord) -> BatchRecord:
        """Stop answering a batch; its answers so far are kept. Raises as `BatchStore.cancel`."""
        try:
            return await self._batches.cancel(batch)
        finally:
            self._stop_cancelled()
            self._changed.set()

    async def counts_of(self, batch: BatchRecord) -> tuple[int, int]:
        """Count the requests that were answered, and that failed, so far."""
        counts = self._counts.get(batch.id)
        if counts is not None:
            return counts.answered, counts.failed
        if not batch.is_open:
            return batch.completed, batch.failed
        count = self._files.folder.num_lines  # another server answers it, or none now
        return await on_thread(lambda: (count(batch.output_id), count(batch.error_id)))

    # ---- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Answer batches until it is cancelled; they go on at the next run."""
        swept_at = -math.inf
        try:
            while True:
                self._changed.clear()
                with self._tried_again("the folder is read"):
                    await self._files.refresh()
                    await self._batches.refresh()
                    self._stop_cancelled()
                    self._start_next()
                    if time.monotonic() >= swept_at + _SWEEP_SECONDS:
                        swept_at = time.monotonic()
                        await self._sweep()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._changed.wait()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.contextmanager
    def _tried_again(self, doing: str) -> Iterator[None]:
        """Log an error of the folder, such as of a disk that is away for now."""
        try:
            yield
        except (AtomError, OSError) as error:
            logger.error("--batch-dir: an error ends it as %s; it is tried again: %s", doing, error)

    async def _sweep(self) -> None:
        """Delete files whose time is over, except inputs of open batches, and what servers that
        ended left behind."""
        for file_id in self._files.expired():
            with contextlib.suppress(RequestError):  # a batch needs it
                await self._files.remove(file_id)
        await on_thread(self._files.folder.remove_rest)
        await self._files.count_anew()

    def _stop_cancelled(self) -> None:
        """Stop the lines of batches that were cancelled, here or at another server."""
        for batch_id, lines in self._lines.items():
            if self._batches.is_cancelled(batch_id):
                lines.cancel()

    def _start_next(self) -> None:
        """Start the oldest open batch of each owner who has none under way, here or elsewhere."""
        now = asyncio.get_running_loop().time()
        self._broken = {each: until for each, until in self._broken.items() if now < until}
        busy = {owner for owner, _ in self._claims.values()}
        for batch in self._batches.open():
            if len(self._tasks) >= _MOST_RUNNING:
                return
            if batch.owner in busy or batch.id in self._broken:
                continue
            busy.add(batch.owner)
            claim = self._files.folder.claim(batch.owner)
            if claim is None:
                continue
            self._claims[batch.id] = batch.owner, claim
            task = asyncio.create_task(self._process(batch.id))
            self._tasks[batch.id] = task
            task.add_done_callback(partial(self._ended, batch.id))

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[batch_id]
        os.close(self._claims.pop(batch_id)[1])
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        # Such as a full disk: what is on it is whole, so the batch goes on once there is room.
        self._broken[batch_id] = asyncio.get_running_loop().time() + _SWEEP_SECONDS
        if isinstance(error, AtomError):
            logger.error("batch %s waits and is tried again: %s", batch_id, error)
        else:
            logger.error("batch %s stopped and is tried again", batch_id, exc_info=error)

    # ---- one batch ----------------------------------------------------------------------------

    async def _process(self, batch_id: str) -> None:
        await self._batches.refresh()  # another server may have ended it before it was claimed
        batch = self._batches.find(batch_id)
        if batch is None:
            return
        if batch.state is BatchState.VALIDATING:
            batch = await self._validate(batch)
        if batch.state is BatchState.IN_PROGRESS:
            batch = await self._answer(batch)
        if batch.state in (BatchState.FINALIZING, BatchState.CANCELLING):
            await self._end(batch)

    async def _validate(self, batch: BatchRecord) -> BatchRecord:
        path = self._files.folder.content(batch.order.input_file_id)
        most = self._files.options.most_lines
        total, problems = await on_thread(lambda: check_lines(path, batch.order.endpoint, most))
        if problems:
            return await self._batches.enter(batch, BatchState.FAILED, problems=problems)
        return await self._batches.enter(batch, BatchState.IN_PROGRESS, total=total)

    async def _answer(self, batch: BatchRecord) -> BatchRecord:
        """Answer lines until all are answered, the batch is cancelled or its time is over."""
        lines = self._lines[batch.id] = asyncio.ensure_future(self._answer_lines(batch))
        problems: tuple[Problem, ...] = ()
        try:
            await asyncio.wait({lines}, timeout=max(0.0, batch.expires_at - self._clock()))
        finally:
            lines.cancel()
            (result,) = await asyncio.gather(lines, return_exceptions=True)
            del self._lines[batch.id]
            self._counts.pop(batch.id, None)
        if isinstance(result, AtomError):
            code = getattr(result, "code", None) or STORAGE_FULL
            problems = (Problem(code, str(result)),)
        elif isinstance(result, Exception):
            raise result
        return await self._batches.enter(batch, BatchState.FINALIZING, problems=problems)

    async def _answer_lines(self, batch: BatchRecord) -> None:
        answers = await on_thread(
            lambda: self._open_answers(batch, self._files.grow), BatchAnswers.close
        )
        try:
            completed, failed = answers.num_answered
            counts = self._counts[batch.id] = BatchCounts(completed, failed)
            run = LineRun(
                partial(self._ask, batch.owner),
                answers,
                lines_of(self._input(batch), MOST_LINE_BYTES),
                told=lambda _: None,
                turns=self._turns,
                counts=counts,
                read=_read_after_others,
            )
            await run.run(min(self._files.options.at_once, batch.total))
        finally:
            answers.close()

    def _input(self, batch: BatchRecord) -> Path:
        return self._files.folder.content(batch.order.input_file_id)

    def _open_answers(self, batch: BatchRecord, grow: Callable[[int], None]) -> BatchAnswers:
        content = self._files.folder.content
        return BatchAnswers(content(batch.output_id), content(batch.error_id), grow)

    async def _ask(self, owner: str, request: BatchRequest) -> tuple[int, bytes]:
        """Ask a request, again where the server refuses it for now."""
        tries = 0
        while True:
            status, answer = await self._door.post(request.url, request.body, batch_label(owner))
            if status in _ASK_AGAIN:
                tries += self._door.is_ready()
                if tries < _MOST_TRIES:
                    await self._pause(min(2.0**tries, _LONGEST_PAUSE_SECONDS))
                    continue
            self.requests["completed" if status < LEAST_ERROR else "failed"] += 1
            return status, answer

    async def _end(self, batch: BatchRecord) -> None:
        """Make files of the answers, and enter the batch's last state."""
        written: list[int] = []
        ended = await on_thread(lambda: self._close_answers(batch, written.append))
        self._files.used_bytes += sum(written)  # past the bound, if there is no other way
        expires = batch.order.output_seconds
        expires_at = None if expires is None else int(self._clock()) + expires
        for file_id, kind, count in (
            (batch.output_id, "output", ended.completed),
            (batch.error_id, "error", ended.failed),
        ):
            if count:
                name = f"{batch.id}_{kind}.jsonl"
                await self._files.keep_output(file_id, batch.owner, name, expires_at)
            elif not self._files.has(file_id):
                self._files.folder.remove_file(file_id)
        await self._batches.enter(
            batch,
            _last_state(batch, ended),
            completed=ended.completed,
            failed=ended.failed,
        )

    def _close_answers(self, batch: BatchRecord, grow: Callable[[int], None]) -> Ended:
        answers = self._open_answers(batch, grow)
        try:
            if batch.state is BatchState.FINALIZING and not batch.problems:
                answers.expire(self._input(batch))
            return answers.ended
        finally:
            answers.close()


def _last_state(batch: BatchRecord, ended: Ended) -> BatchState:
    if batch.state is BatchState.CANCELLING:
        return BatchState.CANCELLED
    if batch.problems:
        return BatchState.FAILED
    return BatchState.EXPIRED if ended.expired else BatchState.COMPLETED


def _read_after_others(line: bytes, number: int) -> BatchRequest:
    """Parse a line, and give its request the lowest priority. A body whose names are no UTF-8 is
    refused by its route. Raises `RequestError`."""
    request = read_request(line, number)
    try:
        fields = _FIELDS.decode(request.body)
    except ValueError:
        return request
    body = msgspec.json.encode({**fields, "priority": MAX_PRIORITY})
    return replace(request, body=body)
