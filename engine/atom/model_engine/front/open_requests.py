"""OpenRequests: the registry of all open requests, one record each, and the one way out of it.

A request leaves the registry with its last output, or early: by a fault, by its time limit, because
its reader lags or has left; the engine is notified of early ends. Both engines own one; it belongs
to their thread (an event loop, if there are time limits) and knows neither sockets nor text.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from atom.client_figures import ClientCounts
from atom.errors import RequestError
from atom.images.image_memory import ImageMemory
from atom.model_engine.front.answer_so_far import AnswerSoFar
from atom.model_engine.front.open_request import OpenRequest
from atom.model_engine.front.output_processor import OutputProcessor
from atom.model_engine.front.request_stream import ReaderLimits, RequestGroup
from atom.model_engine.request import AnswerMove, FinishReason, Request, RequestOutput, group_of
from atom.model_engine.request_image import pixel_bytes
from atom.model_engine.request_trace import EndedRequest


class OpenRequests:
    def __init__(
        self,
        outputs: OutputProcessor,
        abort: Callable[[Sequence[int]], None],
        *,
        reader_limits: ReaderLimits | None = None,
        is_contended: Callable[[], bool] = lambda: False,
        keeps_answers: bool = False,
        image_memory: ImageMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """abort: ends requests early in the engine. reader_limits: how far a reader may lag; None
        for no limit. is_contended: whether requests wait for a place in the engine. keeps_answers:
        they may have to continue elsewhere (`go_on`). image_memory: of requests until they end: the
        engine keeps their images for a preemption, and another place would need them."""
        self.abort = abort
        self._outputs = outputs
        self._reader_limits = reader_limits
        self._is_contended = is_contended
        self._keeps_answers = keeps_answers
        self._image_memory = image_memory
        self._clock = clock
        self._requests: dict[int, OpenRequest] = {}
        self._num_answered = 0  # of these, with an output already
        self._unanswered: dict[str, int] = {}  # the others, by group of clients
        self.quiet_since = clock()  # when the last request ended, if none is open
        self._idle = asyncio.Event()  # no request is open
        self._idle.set()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def by_number(self) -> Mapping[int, OpenRequest]:
        return self._requests

    @property
    def num_unanswered(self) -> int:
        """Return the number of requests that wait for their first token."""
        return len(self._requests) - self._num_answered

    @property
    def unanswered_by_group(self) -> Mapping[str, int]:
        """Return the number of requests that wait for their first token, by group of clients."""
        return self._unanswered

    def _count_unanswered(self, request: OpenRequest, more: int) -> None:
        group = group_of(request.reader.client)
        left = self._unanswered.get(group, 0) + more
        if left:
            self._unanswered[group] = left
        else:
            del self._unanswered[group]

    def counts_by_client(self) -> dict[str, ClientCounts]:
        """Return each client's request and token totals and its open requests; walks all open
        requests."""
        return self._outputs.clients.told(
            (request.reader.client, request.answered) for request in self._requests.values()
        )

    def open(
        self, names: Iterable[str], requests: Sequence[Request], *, shows_text: bool = True
    ) -> RequestGroup:
        """Open the reader's side of one call's requests; their outputs carry these names.
        shows_text: False for tokens alone, which no stop string ends."""
        group = RequestGroup(requests, self._leave, self._reader_limits)
        others = len(self._requests)
        for index, (name, request) in enumerate(zip(names, requests, strict=False)):
            opened = self._outputs.begin(request, name, group, index, shows_text=shows_text)
            if self._keeps_answers:
                opened.so_far = AnswerSoFar(request)
            opened.times.others = others
            self._requests[request.id] = opened
            self._count_unanswered(opened, 1)
            if request.images and self._image_memory is not None:
                client = group_of(request.client_id)
                self._image_memory.charge(request.id, client, pixel_bytes(request.images))
            self._idle.clear()
        return group

    def limit_time(self, group: RequestGroup, bounds: Iterable[float | None]) -> None:
        """Fail each of the group's requests with status 504 unless it ends within the least of
        these seconds; None bounds nothing."""
        seconds = min((bound for bound in bounds if bound is not None), default=None)
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        for number in group.numbers:
            request = self._requests[number]
            request.timers.append(loop.call_later(seconds, self._time_out, request, seconds))

    def limit_first_token(
        self, group: RequestGroup, seconds: float, missed: Callable[[float], Exception]
    ) -> None:
        """End each of the group's requests that has no first token in that time, with the error
        that `missed` makes of these seconds."""
        loop = asyncio.get_running_loop()
        for number in group.numbers:
            request = self._requests[number]
            request.timers.append(loop.call_later(seconds, self._miss, request, seconds, missed))

    def _miss(
        self, request: OpenRequest, seconds: float, missed: Callable[[float], Exception]
    ) -> None:
        if not request.answered:
            self.end(request, missed(seconds))

    def deliver(self, outputs: Sequence[tuple[OpenRequest, RequestOutput]]) -> None:
        """Deliver outputs to their groups, then notify each reader once. Outputs of requests that
        are no longer open are dropped."""
        now, contended = self._clock(), self._is_contended()
        groups: dict[RequestGroup, None] = {}  # in order, each once
        for request, output in outputs:
            if request.ended:
                continue
            if not request.reader.group.put(request.reader.index, output, now, contended=contended):
                self.end(request, _too_slow())
                continue
            groups[request.reader.group] = None
            if not request.answered:
                request.answered = True
                self._num_answered += 1
                self._count_unanswered(request, -1)
            if output.finish_reason is not None:
                self._forget(request, output.finish_reason)
        for group in groups:
            group.notify()

    def go_on(self, number: int, another: int, *, lost: bool) -> Request | None:
        """Rename a request to `another` number and build the request that continues its answer;
        later outputs under the old number reach no client. lost: its engine ended without notice.
        Return None, with no change, if the answer cannot be continued."""
        opened = self._requests.get(number)
        request = None if opened is None else opened.go_on(another, lost=lost)
        if opened is not None and request is not None:
            del self._requests[number]
            self._requests[another] = opened
            opened.reader.group.numbers[opened.reader.index] = another
            self._outputs.metrics.record_continued(lost=lost)
        return request

    def note_went_on(self) -> None:
        """Count an answer that continues elsewhere, since its engine was lost."""
        self._outputs.metrics.record_continued(lost=True)

    def note_moved(self, number: int, move: AnswerMove) -> None:
        """Record that another server continues an answer, for its reader."""
        request = self._requests.get(number)
        if request is not None:
            request.reader.group.moves.append(move)

    # ---- ends ---------------------------------------------------------------------------------

    def end(self, request: OpenRequest, error: Exception | None) -> None:
        """End a request before its last output, unless it has ended: its reader gets `error` (None
        if it has left), and the engine aborts the request."""
        if request.ended:
            return
        self.abort([request.number])
        self._forget(request, FinishReason.ABORT, error)
        if error is not None:
            request.reader.group.fail(error)

    def fail_each(self, numbers: Iterable[int], make_error: Callable[[], Exception]) -> None:
        """End the open requests among these, each with a new error."""
        for number in self._requests.keys() & set(numbers):
            self.end(self._requests[number], make_error())

    def fail_named(self, name: str, make_error: Callable[[], Exception]) -> None:
        """End the open requests of the call of this name."""
        requests = self._requests.values()
        self.fail_each([each.number for each in requests if each.reader.name == name], make_error)

    def fail_all(self, make_error: Callable[[], Exception]) -> int:
        """End every open request; how many there were."""
        count = len(self)
        self.fail_each(list(self._requests), make_error)
        return count

    def _leave(self, group: RequestGroup) -> None:
        for number in group.numbers:
            request = self._requests.get(number)
            if request is not None:
                self.end(request, None)

    def _time_out(self, request: OpenRequest, seconds: float) -> None:
        error = RequestError(
            f"the answer was not complete within {seconds:g} s; ask for fewer tokens or allow more "
            f"time",
            status=504,
            code="timeout",
        )
        self.end(request, error)

    def _forget(
        self, request: OpenRequest, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """Take a request out of the registry: every end comes here, once. error: that ends it
        early."""
        request.ended = True
        del self._requests[request.number]
        if self._image_memory is not None:
            self._image_memory.release(request.reader.first_number)
        self._num_answered -= request.answered
        if not request.answered:
            self._count_unanswered(request, -1)
        self._outputs.metrics.record_end(reason, request.tokens.prompt, request.tokens.output)
        self._outputs.clients.ended(
            request.reader.client, request.tokens.prompt, request.tokens.output
        )
        for timer in request.timers:
            timer.cancel()
        if request.reader.group.trace is not None:
            request.reader.group.trace.ended(_ended(request, reason, error))
        if not self._requests:
            self.quiet_since = self._clock()
            self._idle.set()

    async def wait_idle(self, timeout_seconds: float | None) -> None:
        """Wait until no request is open, but no longer than that; None for any time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()


def _ended(request: OpenRequest, reason: FinishReason, error: Exception | None) -> EndedRequest:
    return EndedRequest(
        number=request.reader.first_number,
        finish_reason=reason.value,
        num_cached_tokens=request.tokens.cached,
        num_output_tokens=request.tokens.output,
        queue_seconds=request.times.queue_seconds,
        first_token_time=request.times.first_token,
        last_token_time=request.times.last_token,
        error=error,
    )


def _too_slow() -> RequestError:
    return RequestError(
        "the answer was not read as fast as it came, and the server keeps only so much of it; "
        "read faster, or ask for it without streaming",
        status=408,
        code="slow_reader",
    )
