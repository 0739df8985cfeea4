"""GuidedRequests: requests for structured output, from arrival to their last token.

Composes the compiler, the gate that holds a request until its grammar is there, and the rows that
follow its tokens. Costs nothing until the first such request comes: no thread, no process, no
import. Owned by StepPipeline; belongs to the engine core's thread.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable
from typing import Any

import msgspec

from atom.model_engine.request import FinishReason, Request
from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.grammar_compiler import GrammarCompiler
from atom.model_engine.structured_output.grammar_gate import GrammarGate, Passed
from atom.model_engine.structured_output.guided_rows import GuidedRows, Matcher
from atom.model_engine.wire.engine_protocol import FinishedRow


class GuidedRequests:
    """rows: those that generate. wake_fd: readable when `take` has something to give, for a loop
    that sleeps."""

    def __init__(self, setup: CompilerSetup) -> None:
        self.wake_fd, self._notify_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._notify_fd, False)
        for fd in (self.wake_fd, self._notify_fd):
            weakref.finalize(self, os.close, fd)
        self.rows = GuidedRows(setup.vocab_size, setup.end_token_ids)
        self._has_ends = bool(setup.end_token_ids)
        self._compiler = GrammarCompiler(setup, self._notify)
        self._gate = GrammarGate(self._compiler)

    @property
    def num_held(self) -> int:
        """How many wait for their grammar."""
        return len(self._gate)

    def hold(self, request: Request) -> None:
        """Take a request that asks for structured output; `take` gives it back."""
        self._gate.hold(request)

    def take(self) -> tuple[list[Request], list[FinishedRow]]:
        """Requests that may be scheduled now, and those that ended because of their grammar."""
        if not len(self._gate):
            return [], []
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        admitted, refused = [], []
        for outcome in self._gate.take():
            if isinstance(outcome, Passed):
                admitted.append(self._enter(outcome))
            else:
                refused.append(refused_row(outcome.request, outcome.reason))
        return admitted, refused

    def drop(self, request_ids: Iterable[int]) -> list[FinishedRow]:
        """Abort those that wait for their grammar."""
        dropped = self._gate.drop(request_ids)
        return [FinishedRow(number, FinishReason.ABORT.value, "aborted", 0) for number in dropped]

    def wait(self) -> None:
        """Block until `take` has something to give, if anything is held."""
        self._gate.wait()

    def close(self) -> None:
        """End the compiler. Nothing else may be called afterwards."""
        self._compiler.close()

    def _enter(self, passed: Passed) -> Request:
        """The masks see to min_tokens, which gives way to a grammar that is complete."""
        request = passed.request
        self.rows.enter(request.id, self._matcher(passed.grammar), request.params)
        params = msgspec.structs.replace(request.params, min_tokens=0)
        return msgspec.structs.replace(request, params=params)

    def _matcher(self, grammar: Any) -> Matcher:
        from xgrammar import GrammarMatcher  # loaded by now: it made the grammar

        # A model without end tokens stops where the grammar first may.
        matcher: Matcher = GrammarMatcher(grammar, terminate_without_stop_token=not self._has_ends)
        return matcher

    def _notify(self) -> None:
        """On a thread of the compiler. A full pipe is readable anyway."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._notify_fd, b"\0")


def refused_row(request: Request, reason: str) -> FinishedRow:
    """How a request ends that asks for what cannot be had."""
    asked = request.params.structured_outputs
    assert asked is not None
    error = asked.refusal(reason)
    return FinishedRow(
        request.id, FinishReason.ERROR.value, str(error), num_cached_tokens=0, param=error.param
    )
