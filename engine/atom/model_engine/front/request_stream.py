"""RequestGroup and RequestStream: the outputs of a call's requests, on their way to one reader.

A reader either waits, as a task, or listens: then it is called in the very turn of the event loop
that brought the outputs, which costs no task switch per token; or it takes the pending outputs.
Outputs that arrive while it is busy are merged, so that a slow reader costs the engine nothing.
Groups are made by OpenRequests; they belong to one thread, and to the waiter's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import msgspec

from atom.model_engine.request import AnswerMove, AnswerTimes, Request, RequestOutput
from atom.model_engine.request_trace import RequestTrace
from atom.model_engine.transfer_legs import TransferOutcome

MOST_UNREAD_TOKENS = 16_384
CONTENDED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Bound how far a reader may lag behind the engine before its requests are aborted: seconds
    since the oldest output that it has not taken, and tokens of each answer that it has not taken.
    contended_seconds: replaces `seconds` while requests wait for a place in the engine, since an
    unread answer occupies one."""

    seconds: float = float("inf")
    tokens: int = 1 << 40
    contended_seconds: float = float("inf")


def reader_limits(seconds: float | None) -> ReaderLimits | None:
    """Return a server's limits: a client that reads nothing for that long is dropped; None for no
    limits."""
    if seconds is None:
        return None
    return ReaderLimits(seconds, MOST_UNREAD_TOKENS, min(seconds, CONTENDED_SECONDS))


class RequestGroup(AsyncIterator[list[tuple[int, RequestOutput]]]):
    """Hold the outputs of one call's requests, as (index of the request, output): iterate, or
    `listen` and `take`. Raises the first error that a request ended with, after the unread outputs:
    with one answer missing the whole is incomplete. trace: notified of each request's end.
    fingerprint: of the engine that began to compute the requests."""

    def __init__(
        self,
        requests: Sequence[Request],
        leave: Callable[[RequestGroup], None],
        limits: ReaderLimits | None = None,
    ) -> None:
        """leave: ends the open requests, without an error."""
        self.numbers = [request.id for request in requests]
        self.num_prompt_tokens = [len(request.prompt_token_ids) for request in requests]
        self.num_image_tokens = [
            sum(image.num_tokens for image in request.images) for request in requests
        ]
        # Prompts may be long: they are kept only if the response reports on them.
        self.prompt_token_ids: list[Sequence[int]] = [
            request.prompt_token_ids if _is_told_of_its_prompt(request) else ()
            for request in requests
        ]
        self.trace: RequestTrace | None = None
        self.fingerprint = ""
        self.times: dict[int, AnswerTimes] = {}  # by request, of those that ended with a token
        self.moves: list[AnswerMove] = []  # of answers that other servers continued
        self.transfer: TransferOutcome | None = None  # of a decode leg
        self._leave = leave
        self._limits = limits
        self._unread: list[tuple[int, RequestOutput]] = []
        self._unread_since = 0.0
        self._unread_tokens = 0
        self._num_open = len(requests)  # those whose end is yet to be taken
        self.drained = False  # there is nothing more to take, now or later
        self._error: Exception | None = None
        self._something = asyncio.Event()
        self._listener: Callable[[], None] | None = None

    # ---- the engine's side --------------------------------------------------------------------

    def put(
        self, index: int, output: RequestOutput, now: float, *, contended: bool = False
    ) -> bool:
        """Add an output and return True, or return False if the reader lags too far behind; the
        caller then notifies the reader (`notify`). The last output is always added. contended:
        other requests wait for a place."""
        if not self._unread:
            self._unread_since = now
        elif not output.finished and self._lags(now, contended):
            return False
        self._unread.append((index, output))
        self._unread_tokens += len(output.output_tokens)
        return True

    def _lags(self, now: float, contended: bool) -> bool:
        limits = self._limits
        if limits is None:
            return False
        seconds = limits.contended_seconds if contended else limits.seconds
        return (
            self._unread_tokens >= limits.tokens * len(self.numbers)
            or now - self._unread_since > seconds
        )

    def note_transfer(self, outcome: TransferOutcome) -> None:
        """Note that a decode leg waits no longer for pages."""
        self.transfer = outcome
        if self.trace is not None:
            self.trace.transferred(outcome)
        self.notify()

    def fail(self, error: Exception) -> None:
        """Record the error that one of the requests ended with."""
        if not self.drained:
            self._error = self._error or error
        self.notify()

    def notify(self) -> None:
        """Notify the reader that there are outputs to take."""
        if self._listener is not None:
            self._listener()
        else:
            self._something.set()

    # ---- the reader's side --------------------------------------------------------------------

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call the listener whenever there may be outputs to take; it must not raise. None removes
        the listener."""
        self._listener = listener

    async def __anext__(self) -> list[tuple[int, RequestOutput]]:
        while not (found := self.take()):
            if self.drained:
                raise StopAsyncIteration
            self._something.clear()
            await self._something.wait()
        return found

    def take(self) -> list[tuple[int, RequestOutput]]:
        """Return the unread outputs, merged to one per request."""
        found = self._unread
        if found:
            self._unread, self._unread_tokens = [], 0
            if len(found) > 1:
                found = _merged(found)
            for _, output in found:
                if output.finished:
                    self._num_open -= 1
                    self.drained = self.drained or not self._num_open
            return found
        error, self._error = self._error, None
        if error is not None:
            self.drained = True
            raise error
        return []

    async def wait_accepted(self) -> None:
        """Wait until the group can be read, without taking anything. Raises `RequestError` if the
        requests cannot be served as asked, or the error that ended one before its first output: a
        status can then still be sent."""
        while not (self._unread or self._error or self.drained):
            self._something.clear()
            await self._something.wait()
        if self._error is not None and not self._unread:
            raise self._error
        for _, output in self._unread:
            refusal = output.refusal()
            if refusal is not None:
                raise refusal

    async def wait_transferred(self) -> TransferOutcome | None:
        """Wait until a decode leg waits no longer for pages, without taking anything; None if it
        ended before."""
        while not (self.transfer or self._unread or self._error or self.drained):
            self._something.clear()
            await self._something.wait()
        return self.transfer

    def close(self) -> None:
        """Abort the running requests, since the reader is gone. May be called again."""
        self._leave(self)
        self.drained, self._error = True, None
        self.notify()  # a reader on another task sees the end


class RequestStream(AsyncIterator[RequestOutput]):
    """Yield the outputs of one request; the last has `finished` set. Leaving the context, or
    `close`, before that aborts the request. Raises the error with which the engine could not
    continue."""

    def __init__(self, group: RequestGroup) -> None:
        """group: of that request alone."""
        self._group = group

    @property
    def num_prompt_tokens(self) -> int:
        return self._group.num_prompt_tokens[0]

    async def __anext__(self) -> RequestOutput:
        ((_, output),) = await anext(self._group)
        return output

    def close(self) -> None:
        self._group.close()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _merged(found: Sequence[tuple[int, RequestOutput]]) -> list[tuple[int, RequestOutput]]:
    """Merge several outputs of a request into one."""
    outputs: dict[int, list[RequestOutput]] = {}
    for index, output in found:
        outputs.setdefault(index, []).append(output)
    return [
        (index, mine[0] if len(mine) == 1 else _as_one(mine)) for index, mine in outputs.items()
    ]


def _as_one(unread: Sequence[RequestOutput]) -> RequestOutput:
    """Merge the unread outputs: the newest's counts and end, with the tokens of all. The prompt's
    log-probabilities are in the first."""
    newest = unread[-1]
    return msgspec.structs.replace(
        newest,
        text="".join(output.text for output in unread),
        output_tokens=[token for output in unread for token in output.output_tokens],
        logprobs=(
            None
            if newest.logprobs is None
            else [entry for output in unread for entry in output.logprobs or ()]
        ),
        prompt_logprobs=next(
            (output.prompt_logprobs for output in unread if output.prompt_logprobs is not None),
            None,
        ),
    )


def _is_told_of_its_prompt(request: Request) -> bool:
    params = request.params
    return params.return_prompt_token_ids or params.prompt_logprobs is not None
