"""RequestStream: the outputs of one request, on their way to one asyncio consumer.

Outputs that come while the consumer is busy are merged into one, so that a slow reader costs
the engine nothing; one that lags for too long, or by too much, has its request aborted. Several
streams of one call share a `ReaderWake` and are read as a `RequestGroup`. Made by
AsyncLLMEngine.add_requests; belongs to the event loop that made it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import msgspec

from atom.errors import RequestError
from atom.model_engine.request import RequestOutput

MOST_UNREAD_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """How far a reader may lag behind the engine before its request is aborted: seconds since the
    oldest output that it has not taken, and tokens that it has not taken."""

    seconds: float = float("inf")
    tokens: int = 1 << 40


def reader_limits(seconds: float | None) -> ReaderLimits | None:
    """A server's: a client that reads nothing for that long is given up; None for no limits."""
    return None if seconds is None else ReaderLimits(seconds, MOST_UNREAD_TOKENS)


class ReaderWake:
    """Tells the one reader of a call's streams that there is something to take.

    A reader either waits, as a task, or listens: then it is called in the very turn of the event
    loop that brought the outputs, which costs no task switch per token. Each step notifies once.
    """

    __slots__ = ("_listener", "_something")

    def __init__(self) -> None:
        self._something = asyncio.Event()
        self._listener: Callable[[], None] | None = None

    def notify(self) -> None:
        if self._listener is not None:
            self._listener()
        else:
            self._something.set()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call it from now on; it must not raise. None: no listener any more."""
        self._listener = listener

    def clear(self) -> None:
        """What comes from now on is what `wait` waits for."""
        self._something.clear()

    async def wait(self) -> None:
        await self._something.wait()


class RequestStream(AsyncIterator[RequestOutput]):
    """Iterate for outputs; the last has `finished` set. Leaving the context, or `close`, before
    that aborts the request. Raises the engine's error when the request could not go on."""

    def __init__(
        self,
        name: str,
        num_prompt_tokens: int,
        abort: Callable[[], None],
        *,
        prompt_token_ids: Sequence[int] = (),
        wake: ReaderWake | None = None,
        limits: ReaderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """prompt_token_ids: kept only for requests that want something said of them. wake: shared
        by the streams of a group."""
        self.name = name
        self.num_prompt_tokens = num_prompt_tokens
        self.prompt_token_ids = prompt_token_ids
        self.wake = wake or ReaderWake()
        self._abort = abort
        self._limits = limits
        self._clock = clock
        self._unread: list[RequestOutput] = []
        self._unread_since = 0.0
        self._unread_tokens = 0
        self._error: Exception | None = None
        self._ended = False  # nothing will be put any more
        self._drained = False  # the consumer has seen the end

    # ---- the engine's side --------------------------------------------------------------------

    def put(self, output: RequestOutput) -> None:
        """The reader is not told: `wake` is notified when all that a step brought is put."""
        if self._limits is not None:
            if not self._unread:
                self._unread_since = self._clock()
            elif not output.finished and self._lags(self._limits):
                self._abort()
                self.fail(_too_slow())
                return
        self._unread.append(output)
        self._unread_tokens += len(output.output_tokens)
        self._ended = output.finished

    def fail(self, error: Exception) -> None:
        """End with `error`, after what is already there has been read."""
        self._error = error
        self._ended = True
        self.wake.notify()

    def _lags(self, limits: ReaderLimits) -> bool:
        unread_seconds = self._clock() - self._unread_since
        return self._unread_tokens >= limits.tokens or unread_seconds > limits.seconds

    # ---- the consumer's side ------------------------------------------------------------------

    async def __anext__(self) -> RequestOutput:
        while True:
            self.wake.clear()
            output = self.take()
            if output is not None:
                return output
            if self._drained:
                raise StopAsyncIteration
            await self.wake.wait()

    def take(self) -> RequestOutput | None:
        """Everything unread as one output, if there is any. Raises the request's error once, after
        the last output before it."""
        unread = self._unread
        if unread:
            self._unread, self._unread_tokens = [], 0
            output = unread[0] if len(unread) == 1 else _merged(unread)
            self._drained = self._drained or output.finished
            return output
        if self._error is not None and not self._drained:
            self._drained = True
            raise self._error
        return None

    def take_text(self) -> str | None:
        """The same where text is all that the reader shows: None, and nothing taken, unless there
        is exactly one output and it does not end the answer."""
        unread = self._unread
        if len(unread) != 1 or unread[0].finished:
            return None
        text = unread[0].text
        self._unread, self._unread_tokens = [], 0
        return text

    async def wait_accepted(self) -> None:
        """Wait until something can be read, without taking it. Raises `RequestError` when it is
        that the request cannot be served as asked: its status can then still be sent."""
        while not self._unread and not self._ended:
            self.wake.clear()
            await self.wake.wait()
        refusal = self._unread[-1].refusal() if self._unread else None
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        """The consumer is gone: abort what is still running. May be called again."""
        if not self._ended:
            self._ended = True
            self._abort()
        self._drained = True
        self.wake.notify()  # a reader on another task sees the end

    @property
    def drained(self) -> bool:
        """Whether there is nothing more to take, now or later."""
        return self._drained

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class RequestGroup(AsyncIterator[list[tuple[int, RequestOutput]]]):
    """The streams of one call, read together: iterate, or `listen` and `take`. What all of them
    have comes as (index of the stream, output), and costs one wake-up."""

    def __init__(self, streams: Sequence[RequestStream], wake: ReaderWake) -> None:
        """wake: the one that these streams share."""
        self.streams = tuple(streams)
        self._wake = wake
        self._open = list(range(len(self.streams)))
        self._error: Exception | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Have it called whenever there may be something to take; None to end that."""
        self._wake.listen(listener)

    @property
    def drained(self) -> bool:
        """Whether there is nothing more to take, now or later."""
        return not self._open

    async def __anext__(self) -> list[tuple[int, RequestOutput]]:
        while self._open:
            self._wake.clear()
            found = self.take()
            if found:
                return found
            if self._open:
                await self._wake.wait()
        raise StopAsyncIteration

    def take(self) -> list[tuple[int, RequestOutput]]:
        """What is unread. Raises the first stream's error once nothing is unread before it: one
        answer is missing then, and there is no whole."""
        found = []
        ended = False
        for index in self._open:
            try:
                output = self.streams[index].take()
            except Exception as error:
                self._error = self._error or error
                continue
            if output is not None:
                found.append((index, output))
                ended = ended or output.finished
        if self._error is not None:
            if not found:
                self._open.clear()
                raise self._error
        elif ended or not found:
            self._open = [index for index in self._open if not self.streams[index].drained]
        return found

    def close(self) -> None:
        """Abort what is still running. May be called again."""
        for stream in self.streams:
            stream.close()


def _merged(unread: Sequence[RequestOutput]) -> RequestOutput:
    """Several outputs of a request as one: the newest's counts and end, with what all of them
    added. The prompt's log-probabilities came with the first."""
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


def _too_slow() -> RequestError:
    return RequestError(
        "the answer was not read as fast as it came, and the server keeps only so much of it; "
        "read faster, or ask for it without streaming",
        status=408,
        code="slow_reader",
    )
