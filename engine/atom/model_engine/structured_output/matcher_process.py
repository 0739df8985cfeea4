"""The matcher process: follows the sequences of one grammar and writes their masks.

A child of the compile server, so that no call into the grammar library runs in the engine core. The
library counts its work, but not all of it, and a process can be stopped while a call cannot. Each
call has a limit of processor time; the kernel kills the process that exceeds it. Ends when the core
closes the connection. Loads no torch.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from atom.model_engine.structured_output.compile_messages import CompilerSetup, FollowOrder
from atom.model_engine.structured_output.frames import FrameReader, framed
from atom.model_engine.structured_output.grammar_library import GrammarLibrary, is_too_costly
from atom.model_engine.structured_output.mask_arena import map_masks
from atom.model_engine.structured_output.matcher_messages import MaskState, MatcherJobs, RowReply

_TELL_EVERY_NS = 2_000_000
_TOKENS_PER_CALL = 64  # of those that a new row has already


def follow_grammar(
    frames: FrameReader,
    order: FollowOrder,
    library: GrammarLibrary,
    setup: CompilerSetup,
) -> None:
    """Serve until the connection ends. The first reply is empty: it reports that the process has
    begun; if the process ends later, its rows are the cause."""
    connection = frames.connection
    connection.sendall(framed(msgspec.msgpack.encode([])))
    with _processor_time(setup.limit_cpu_seconds):
        first = library.matcher(order.grammar)
    rows = _Rows(first, setup)
    jobs = MatcherJobs(enter=order.rows)
    decoder = msgspec.msgpack.Decoder(MatcherJobs)
    while True:
        _answer(connection, rows.work(jobs))
        payload = frames.wait()
        if payload is None:
            return
        jobs = decoder.decode(payload)


def _answer(connection: socket.socket, replies: Iterator[RowReply]) -> None:
    """Send the replies: in one message if they come quickly, else every few milliseconds."""
    done: list[RowReply] = []
    told = time.monotonic_ns()
    for reply in replies:
        done.append(reply)
        if (now := time.monotonic_ns()) - told > _TELL_EVERY_NS:
            connection.sendall(framed(msgspec.msgpack.encode(done)))
            done, told = [], now
    if done:
        connection.sendall(framed(msgspec.msgpack.encode(done)))


class _Rows:
    """The matchers, by the slot of their mask."""

    def __init__(self, first: Any, setup: CompilerSetup) -> None:
        """first: a matcher at the beginning of an answer."""
        self._first = first
        self._ends = frozenset(setup.end_token_ids)
        self._limit_seconds = setup.limit_call_cpu_seconds
        self._masks = map_masks(setup.masks_fd, setup.vocab_size)
        known = np.arange(self._masks.shape[1] * 32) < setup.vocab_size
        self._known = np.packbits(known, bitorder="little").view(np.uint32)
        self._matchers: dict[int, Any] = {}

    def work(self, jobs: MatcherJobs) -> Iterator[RowReply]:
        """Run the jobs, and yield each row's (slot, state, microseconds of processor time) once
        known."""
        with _processor_time(self._limit_seconds) as begin_call:
            before = time.thread_time_ns()
            for slot, token in jobs.accept:
                begin_call()
                state = self._follow(slot, [token])
                after = time.thread_time_ns()
                yield slot, state, (after - before) // 1000
                before = after
            for slot, tokens in jobs.enter:
                state = self._enter(slot, tokens, begin_call)
                after = time.thread_time_ns()
                yield slot, state, (after - before) // 1000
                before = after
        for slot in jobs.leave:
            self._matchers.pop(slot, None)
            yield slot, MaskState.LEFT, 0

    def _enter(self, slot: int, tokens: Sequence[int], begin_call: Callable[[], None]) -> MaskState:
        begin_call()
        matcher = self._matchers[slot] = self._first.deep_copy()
        last = max(len(tokens) - _TOKENS_PER_CALL, 0)
        for start in range(0, last, _TOKENS_PER_CALL):
            begin_call()
            if not matcher.consume_tokens(tokens[start : min(start + _TOKENS_PER_CALL, last)]):
                return _refusal(matcher)
        begin_call()
        return self._follow(slot, tokens[last:])

    def _follow(self, slot: int, tokens: Sequence[int]) -> MaskState:
        """Follow tokens, and write the mask of the next one."""
        matcher = self._matchers[slot]
        for token in tokens:
            if not matcher.consume_token(token):
                return _refusal(matcher)
            # A model without end tokens stops where the grammar first may.
            if token in self._ends or (not self._ends and matcher.is_accepting()):
                return MaskState.COMPLETE
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint32)[: self._masks.shape[1]]
        mask = mask & self._known
        # The library may find only now that no text goes on, and would allow the end.
        lost = matcher.is_error() or matcher.stop_reason() == "NoExtensionBias"
        if lost or not mask.any():
            return _refusal(matcher)
        self._masks[slot] = mask.view(np.int32)
        return MaskState.READY


def _refusal(matcher: Any) -> MaskState:
    return MaskState.COSTLY if is_too_costly(matcher) else MaskState.REFUSED


@contextlib.contextmanager
def _processor_time(seconds: float) -> Iterator[Callable[[], None]]:
    """Yield a function that restarts a limit of processor time; the kernel ends this process by
    SIGPROF `seconds` after its last call."""

    def begin() -> None:
        signal.setitimer(signal.ITIMER_PROF, seconds)

    begin()
    try:
        yield begin
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
