"""RequestStream: the outputs of one request, on their way to one asyncio consumer.

Outputs that come while the consumer is busy are merged into one, so that a slow reader costs
the engine nothing; one that lags for too long, or by too much, has its request aborted. Several
streams of one call share a wake-up and are read as a `RequestGroup`. Made by
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
from atom.model_engine.request import RequestOutput, TokenLogprobs

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
        wake: asyncio.Event | None = None,
        limits: ReaderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """prompt_token_ids: kept only for requests that want something said of them. wake: set
        when there is something to take; shared by the streams of a group."""
        self.name = name
        self.num_prompt_tokens = num_prompt_tokens
        self.prompt_token_ids = prompt_token_ids
        self._abort = abort
        self._wake = wake or asyncio.Event()
        self._limits = limits
        self._clock = clock
        self._unread_since = 0.0
        self._newest: RequestOutput | None = None  # with everything unread merged in on reading
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._error: Exception | None = None
        self._ended = False  # nothing will be put any more
        self._drained = False  # the consumer has seen the end

    # ---- the engine's side --------------------------------------------------------------------

    def put(self, output: RequestOutput) -> None:
        if self._newest is None:
            if self._limits is not None:
                self._unread_since = self._clock()
        elif self._limits is not None and not output.finished and self._lags(self._limits):
            self._abort()
            self.fail(_too_slow())
            return
        self._newest = output
        self._texts.append(output.text)
        self._tokens += output.output_tokens
        self._logprobs += output.logprobs or ()
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        self._ended = output.finished
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """End with `error`, after what is already there has been read."""
        self._error = error
        self._ended = True
        self._wake.set()

    def _lags(self, limits: ReaderLimits) -> bool:
        unread_seconds = self._clock() - self._unread_since
        return len(self._tokens) >= limits.tokens or unread_seconds > limits.seconds

    # ---- the consumer's side ------------------------------------------------------------------

    async def __anext__(self) -> RequestOutput:
        while True:
            self._wake.clear()
            output = self.take()
            if output is not None:
                return output
            if self._drained:
                raise StopAsyncIteration
            await self._wake.wait()

    def take(self) -> RequestOutput | None:
        """Everything unread as one output, if there is any. Raises the request's error once, after
        the last output before it."""
        if self._newest is not None:
            return self._merged(self._newest)
        if self._error is not None and not self._drained:
            self._drained = True
            raise self._error
        return None

    def _merged(self, newest: RequestOutput) -> RequestOutput:
        merged = newest
        if len(self._texts) > 1:
            merged = msgspec.structs.replace(
                newest,
                text="".join(self._texts),
                output_tokens=self._tokens,
                logprobs=None if newest.logprobs is None else self._logprobs,
                prompt_logprobs=self._prompt_logprobs,
            )
        self._newest, self._texts, self._tokens = None, [], []
        self._logprobs, self._prompt_logprobs = [], None
        self._drained = newest.finished
        return merged

    async def wait_accepted(self) -> None:
        """Wait until something can be read, without taking it. Raises `RequestError` when it is
        that the request cannot be served as asked: its status can then still be sent."""
        while self._newest is None and not self._ended:
            self._wake.clear()
            await self._wake.wait()
        refusal = None if self._newest is None else self._newest.refusal()
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        """The consumer is gone: abort what is still running. May be called again."""
        if not self._ended:
            self._ended = True
            self._abort()
        self._drained = True
        self._wake.set()  # a reader on another task sees the end

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
    """The streams of one call, read together: an iteration gives what all of them have, as (index
    of the stream, output), and costs one wake-up."""

    def __init__(self, streams: Sequence[RequestStream], wake: asyncio.Event) -> None:
        """wake: the event that these streams share."""
        self.streams = tuple(streams)
        self._wake = wake
        self._open = list(range(len(self.streams)))
        self._error: Exception | None = None

    async def __anext__(self) -> list[tuple[int, RequestOutput]]:
        while self._open:
            self._wake.clear()
            found = self._take()
            if found:
                return found
            if self._error is not None:
                self._open.clear()  # one answer is missing: there is no whole
                raise self._error
            if self._open:
                await self._wake.wait()
        raise StopAsyncIteration

    def _take(self) -> list[tuple[int, RequestOutput]]:
        found = []
        for index in self._open:
            try:
                output = self.streams[index].take()
            except Exception as error:
                self._error = self._error or error  # raised behind what came before it
                continue
            if output is not None:
                found.append((index, output))
        if self._error is None:
            self._open = [index for index in self._open if not self.streams[index].drained]
        return found

    def close(self) -> None:
        """Abort what is still running. May be called again."""
        for stream in self.streams:
            stream.close()


def _too_slow() -> RequestError:
    return RequestError(
        "the answer was not read as fast as it came, and the server keeps only so much of it; "
        "read faster, or ask for it without streaming",
        status=408,
        code="slow_reader",
    )
