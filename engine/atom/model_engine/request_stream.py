"""RequestStream: the outputs of one request, on their way to one asyncio consumer.

Outputs that come while the consumer is busy are merged into one, so that a slow reader costs
the engine nothing and memory no more than its text. Made by AsyncLLMEngine.add_request; belongs to
the event loop that made it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from atom.model_engine.request import RequestOutput, TokenLogprobs


class RequestStream(AsyncIterator[RequestOutput]):
    """Iterate for outputs; the last has `finished` set. Leaving the context, or `close`, before
    that aborts the request. Raises the engine's error when the request could not go on."""

    def __init__(self, name: str, num_prompt_tokens: int, abort: Callable[[], None]) -> None:
        self.name = name
        self.num_prompt_tokens = num_prompt_tokens
        self._abort = abort
        self._wake = asyncio.Event()
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

    # ---- the consumer's side ------------------------------------------------------------------

    async def __anext__(self) -> RequestOutput:
        while self._newest is None:
            if self._drained or self._error is not None:
                return self._stop()
            self._wake.clear()
            await self._wake.wait()
        return self._take(self._newest)

    def _take(self, newest: RequestOutput) -> RequestOutput:
        merged = newest
        if len(self._texts) > 1:
            merged = dataclasses.replace(
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

    def _stop(self) -> RequestOutput:
        if self._drained or self._error is None:
            raise StopAsyncIteration
        self._drained = True
        raise self._error

    def close(self) -> None:
        """The consumer is gone: abort what is still running. May be called again."""
        if not self._ended:
            self._ended = True
            self._abort()
        self._drained = True
        self._wake.set()  # a reader on another task sees the end

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
