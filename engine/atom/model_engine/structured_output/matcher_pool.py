"""MatcherPool: guided sequences in their matcher processes, and the masks that these write.

Sequences of one grammar share a process. A lost process (a call that took too much processor time,
or memory; a crash) is replaced: each of its sequences is followed again, from its tokens, in a
separate process, so that the sequence at fault is found. That sequence ends with an error; the
others only waited. Decides nothing about masks or requests. Belongs to the engine core's thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import FollowOrder
from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.grammar_compiler import CompilerLostError
from atom.model_engine.structured_output.idle_processes import IdleProcesses
from atom.model_engine.structured_output.mask_arena import MaskArena
from atom.model_engine.structured_output.matcher_link import MatcherLink
from atom.model_engine.structured_output.matcher_messages import MaskState, MatcherJobs, RowReply

_MOST_LOSSES = 2  # of its process: one that may have been others' doing, one that was not
_MOST_MISSES = 5  # processes that ended before they began, with the compile server
_OPENERS = 2


@dataclass(frozen=True, slots=True)
class MaskNews:
    """Report the state of a sequence's mask. state: None if it has to be made again, or if it never
    will be, in which case `error` is set. cpu_seconds: processor time of the mask."""

    request_id: int
    state: MaskState | None
    cpu_seconds: float = 0.0
    error: str | None = None


@dataclass(slots=True, eq=False)
class _Row:
    """Hold a row that matcher processes follow. due: replies that its process owes; sent: its
    tokens that the process has received. losses: processes that ended while they followed it;
    misses: processes that never began."""

    request_id: int
    grammar: Grammar
    slot: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    sent: int = 0
    due: int = 0
    losses: int = 0
    misses: int = 0
    link: MatcherLink | None = None
    left: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Opening:
    """A process that starts with `rows`, and more that came meanwhile. alone: it is theirs only."""

    future: Future[socket.socket]
    grammar: Grammar
    rows: list[_Row]
    later: list[_Row]
    alone: bool


class MatcherPool:
    def __init__(
        self,
        arena: MaskArena,
        open_process: Callable[[FollowOrder], socket.socket],
        make_idle: Callable[[Callable[[], None]], IdleProcesses] = IdleProcesses,
    ):
        """open_process: on a thread of the pool; gives the connection of a new process, or raises
        AtomError. make_idle: takes the call that wakes this pool. wake_fd: readable when `poll` has
        something to do, for a loop that sleeps."""
        self._idle = make_idle(self.notify)
        self._arena = arena
        self._open_process = open_process
        self._threads = ThreadPoolExecutor(_OPENERS, thread_name_prefix="matchers")
        self._rows: dict[int, _Row] = {}
        self._links: dict[int, MatcherLink] = {}  # by file descriptor
        self._shared: OrderedDict[Grammar, MatcherLink] = OrderedDict()  # least used first
        self._apart: weakref.WeakSet[Grammar] = weakref.WeakSet()
        self._openings: list[_Opening] = []
        self._news: list[MaskNews] = []
        self._closed = False
        self._epoll = select.epoll()
        self._woken_fd, self._notify_fd = os.pipe()
        for fd in (self._woken_fd, self._notify_fd):
            os.set_blocking(fd, False)
            weakref.finalize(self, os.close, fd)
        weakref.finalize(self, self._epoll.close)
        self._epoll.register(self._woken_fd, select.EPOLLIN)

    @property
    def wake_fd(self) -> int:
        return self._epoll.fileno()

    @property
    def has_room(self) -> bool:
        """Return whether one more sequence can enter."""
        return self._arena.num_free > 0

    # ---- sequences ----------------------------------------------------------------------------

    def enter(self, request_id: int, grammar: Grammar, tokens: Sequence[int] = ()) -> None:
        """Follow a new sequence, which has these tokens already; there is room. News of its first
        mask come."""
        slot = self._arena.take()
        assert slot is not None, "no room for one more guided sequence"
        row = self._rows[request_id] = _Row(request_id, grammar, slot, array("i", tokens))
        self._place(row)

    def accept(self, tokens: Iterable[tuple[int, int]]) -> None:
        """Request id and next token, of sequences that are here. News of each mask come."""
        jobs: dict[MatcherLink, list[tuple[int, int]]] = {}
        for request_id, token in tokens:
            row = self._rows[request_id]
            row.tokens.append(token)
            if row.link is not None:
                row.due += 1
                row.sent += 1
                jobs.setdefault(row.link, []).append((row.slot, token))
        for link, accepted in jobs.items():
            link.send(MatcherJobs(accept=accepted))

    def leave(self, request_ids: Iterable[int]) -> None:
        """Forget requests that have ended; unknown ones are ignored."""
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is None:
                continue
            row.left = True
            if row.link is not None:
                row.link.send(MatcherJobs(leave=[row.slot]))

    def mask(self, request_id: int) -> NDArray[np.int32]:
        """Return the sequence's mask [words], after the news that it is ready and until its next
        token."""
        mask: NDArray[np.int32] = self._arena.rows[self._rows[request_id].slot]
        return mask

    # ---- news ---------------------------------------------------------------------------------

    def poll(self, timeout_seconds: float) -> list[MaskNews]:
        """Return the pending news; waits up to `timeout_seconds` if there is none."""
        if not self._news:
            for fd, _ in self._epoll.poll(timeout_seconds):
                if fd == self._woken_fd:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self._take_opened()
                    self._end(self._idle.take_overdue())
                elif fd in self._links:
                    self._read(self._links[fd])
        news, self._news = self._news, []
        return news

    def wait(self) -> None:
        """Block until `poll` has something to do."""
        self._epoll.poll()

    def notify(self) -> None:
        """Make `wake_fd` readable; from any thread. A full pipe is readable anyway."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._notify_fd, b"\0")

    def close(self) -> None:
        """End all processes. Nothing else may be called afterwards."""
        self._closed = True
        self._idle.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for link in self._links.values():
            link.abandon()
            link.close()

    def _read(self, link: MatcherLink) -> None:
        replies, alive = link.receive()
        for reply in replies:
            self._take(link, reply)
        if not alive:
            self._lost(link)

    def _take(self, link: MatcherLink, reply: RowReply) -> None:
        slot, state, cpu_micros = reply
        if state == MaskState.LEFT:
            del link.rows[slot]
            self._arena.give_back(slot)
            self._retire_if_idle(link)
            return
        row = self._rows.get(link.rows[slot])
        if row is not None and row.link is link and row.slot == slot:
            row.due -= 1
            done = MaskState(state) if row.due == 0 else None
            if done is not None:
                self._news.append(MaskNews(row.request_id, done, cpu_micros / 1e6))

    # ---- processes ----------------------------------------------------------------------------

    def _place(self, row: _Row) -> None:
        """Let a process follow it: that of its grammar, or a new one."""
        grammar = row.grammar
        alone = grammar in self._apart
        link = None if alone else self._shared.get(grammar)
        if link is not None:
            self._shared.move_to_end(grammar)
            self._join(link, row)
            return
        if not alone:
            for opening in self._openings:
                if opening.grammar is grammar and not opening.alone:
                    opening.later.append(row)
                    return
        self._open(grammar, [row], alone=alone)

    def _open(self, grammar: Grammar, rows: list[_Row], *, alone: bool) -> None:
        for row in rows:
            row.link, row.sent, row.due = None, len(row.tokens), 1
        order = FollowOrder(
            grammar=grammar.text, rows=[(row.slot, row.tokens.tolist()) for row in rows]
        )
        future = self._threads.submit(self._open_process, order)
        self._openings.append(_Opening(future, grammar, rows, [], alone))
        future.add_done_callback(lambda _: self.notify())

    def _take_opened(self) -> None:
        done = [opening for opening in self._openings if opening.future.done()]
        self._openings = [opening for opening in self._openings if not opening.future.done()]
        for opening in done:
            try:
                link = MatcherLink(opening.future.result())
            except CompilerLostError as error:
                self._open_again(opening, str(error))
                continue
            except AtomError as error:
                self._fail([*opening.rows, *opening.later], str(error))
                continue
            self._links[link.fileno()] = link
            self._epoll.register(link.fileno(), select.EPOLLIN)
            if not opening.alone:
                self._shared[opening.grammar] = link
            for row in opening.rows:
                self._resume(link, row)
            for row in opening.later:
                if row.left:
                    self._arena.give_back(row.slot)
                else:
                    self._join(link, row)

    def _resume(self, link: MatcherLink, row: _Row) -> None:
        """Send the tokens that accumulated meanwhile for a row that the process began with."""
        link.rows[row.slot] = row.request_id
        if row.left:
            link.send(MatcherJobs(leave=[row.slot]))
            return
        row.link = link
        if missed := row.tokens[row.sent :].tolist():
            row.due += len(missed)
            row.sent += len(missed)
            link.send(MatcherJobs(accept=[(row.slot, token) for token in missed]))

    def _join(self, link: MatcherLink, row: _Row) -> None:
        row.link, row.due, row.sent = link, 1, len(row.tokens)
        self._idle.discard(link)
        link.rows[row.slot] = row.request_id
        link.send(MatcherJobs(enter=[(row.slot, row.tokens.tolist())]))

    def _lost(self, link: MatcherLink) -> None:
        """Take a link out whose process has ended, and writes nothing any more."""
        self._epoll.unregister(link.fileno())
        del self._links[link.fileno()]
        link.close()
        self._idle.discard(link)
        for grammar, shared in list(self._shared.items()):
            if shared is link:
                del self._shared[grammar]
        for slot, request_id in link.rows.items():
            row = self._rows.get(request_id)
            if row is None or row.link is not link or row.slot != slot:
                self._arena.give_back(slot)
                continue
            row.losses += link.greeted
            row.misses += not link.greeted
            if row.misses > _MOST_MISSES or (row.losses >= _MOST_LOSSES and row.due):
                self._fail([row], TOO_SLOW)
                continue
            if link.greeted:
                self._apart.add(row.grammar)
            self._news.append(MaskNews(row.request_id, None))
            self._open(row.grammar, [row], alone=True)

    def _open_again(self, opening: _Opening, error: str) -> None:
        """Open a process again; another compile server will start with it."""
        rows = [*opening.rows, *opening.later]
        lost = []
        for row in rows:
            row.misses += 1
            if row.left or row.misses > _MOST_MISSES:
                lost.append(row)
        self._fail(lost, error)
        kept = [row for row in rows if row not in lost]
        if kept:
            self._open(opening.grammar, kept, alone=opening.alone)

    def _fail(self, rows: Sequence[_Row], error: str) -> None:
        """Fail the rows with an error."""
        for row in rows:
            self._arena.give_back(row.slot)
            if self._rows.pop(row.request_id, None) is not None:
                self._news.append(MaskNews(row.request_id, None, error=error))

    def _retire_if_idle(self, link: MatcherLink) -> None:
        """Keep a process for a while that waits for the next sequence of its grammar."""
        if link.rows:
            return
        if link in self._shared.values():
            self._end(self._idle.put(link))
        else:
            link.abandon()

    def _end(self, links: Sequence[MatcherLink]) -> None:
        """End processes that have no sequence; the next of their grammars start others."""
        for grammar, link in list(self._shared.items()):
            if link in links:
                self._shared.pop(grammar).abandon()


TOO_SLOW = (
    "following the grammar takes too much processor time or memory per token; make it less "
    "ambiguous: fewer nested repetitions, and fewer parts that may be empty"
)
