"""AsyncLLMEngine: the engine for asyncio programs, the HTTP server first of all.

Bridges CoreManager's thread to the event loop with one hop per engine step, keeps a stream per
open request, and knows at every moment whether the engine can serve and if not, why. Torch-free;
knows no HTTP. All of its methods belong to the loop that called `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atom.config import Config
from atom.errors import AtomError, EngineDeadError, RequestError
from atom.model_engine.core_events import (
    CoreEvent,
    CoreFailed,
    CoreResumed,
    CoreStalled,
    RankStats,
)
from atom.model_engine.core_port import CoreFactory
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.engine_protocol import (
    EngineReport,
    ProgressBody,
    StatsBody,
    StreamBody,
    UtilityResponseBody,
    first_id,
)
from atom.model_engine.fan_out import params_of_each_answer
from atom.model_engine.input_output_processor import InputOutputProcessor
from atom.model_engine.input_processor import Prompt
from atom.model_engine.rank_answers import add_stats
from atom.model_engine.request import Request, RequestOutput
from atom.model_engine.request_stream import ReaderLimits, RequestGroup, RequestStream
from atom.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

# Longer texts are tokenised on a thread, so that no other request waits for them.
_LONG_TEXT_CHARACTERS = 8192


class EngineState(enum.StrEnum):
    """STALLED: a rank has been silent for too long; it becomes READY again if that ends."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """reason: for people, why it does not serve; empty when it does. report: once it was ready."""

    state: EngineState
    reason: str = ""
    report: EngineReport | None = None


class AsyncLLMEngine:
    """One engine and its open requests."""

    def __init__(
        self,
        config: Config,
        processor: InputOutputProcessor | None = None,
        *,
        core_factory: CoreFactory = CoreManager,
        client: int = 0,
        on_progress: Callable[[str, float], None] | None = None,
        request_timeout_seconds: float | None = None,
        reader_limits: ReaderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """processor: loaded from the model's folder unless given. client: this engine's number
        among those that share the engine processes. on_progress: told the phase of
        start-up and the share of it that is done. request_timeout_seconds: how long any request
        may take, from its arrival to its last token; None for any time. reader_limits: how far a
        stream's reader may lag; None for as far as it likes. Raises `ModelError`."""
        self.config = config
        self.processor = processor or InputOutputProcessor(config)
        self.status = EngineStatus(EngineState.STARTING, "starting the engine process")
        self.stats_by_rank: dict[int, StatsBody] = {}
        self._stalled: dict[int, str] = {}  # rank → what is wrong with it
        self._on_progress = on_progress
        self._request_timeout_seconds = request_timeout_seconds
        self._reader_limits = reader_limits
        self._clock = clock
        self._core = core_factory(config, self._on_event)
        self._loop: asyncio.AbstractEventLoop
        self._streams: dict[int, RequestStream] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}  # utilities that have not answered
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._unanswered: set[int] = set()  # open requests without a token yet
        self._ids = itertools.count(first_id(client))
        self._decided = asyncio.Event()  # start-up has ended, one way or the other
        self._died = asyncio.Event()
        self._idle = asyncio.Event()  # no request is open
        self._idle.set()

    # ---- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load; `status` tells how far it is, `wait_ready` waits for it."""
        self._loop = asyncio.get_running_loop()
        self._core.start()

    async def wait_ready(self) -> EngineReport:
        """What start-up found out. Raises `EngineDeadError` when it failed."""
        await self._decided.wait()
        if self.status.report is None:
            raise EngineDeadError(self.status.reason)
        return self.status.report

    @property
    def stats(self) -> StatsBody | None:
        """Of all ranks together; None before the first has reported."""
        parts = list(self.stats_by_rank.values())
        return add_stats(parts) if parts else None

    async def wait_dead(self) -> str:
        """Returns the reason once the engine process is gone."""
        await self._died.wait()
        return self.status.reason

    async def drain(self, timeout_seconds: float) -> int:
        """Take no more requests and wait for those that run; then abort the rest (each gets an
        error). Returns how many were aborted."""
        if self.status.state is not EngineState.DEAD:
            reason = "the server is shutting down"
            self.status = replace(self.status, state=EngineState.DRAINING, reason=reason)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        unfinished = list(self._streams)
        for request_id in unfinished:
            error = RequestError(
                f"the server shut down before the answer was complete "
                f"(it waited {timeout_seconds:g} s); send the request again",
                status=503,
            )
            self._fail(request_id, error)
        return len(unfinished)

    async def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """End the engine process. Open requests get an error."""
        self._die("the engine was shut down")
        await asyncio.to_thread(self._core.shutdown, timeout_seconds)

    # ---- requests -----------------------------------------------------------------------------

    async def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come. Closing the iterator before its end aborts the request."""
        async with await self.add_request(prompt, params, request_id=request_id) as stream:
            async for output in stream:
                yield output

    async def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
        timeout_seconds: float | None = None,
    ) -> RequestStream:
        """Checks and queues a request for one answer; the stream's owner must exhaust or close it.

        Raises `RequestError` when it cannot be served (status 503 while starting or draining, 429
        when too many wait) and `EngineDeadError` when the engine process is gone."""
        if params.n != 1:
            raise RequestError(f"n is {params.n}: use add_requests for several answers", param="n")
        group = await self.add_requests(
            [prompt],
            params,
            request_id=request_id,
            add_special_tokens=add_special_tokens,
            priority=priority,
            timeout_seconds=timeout_seconds,
        )
        return group.streams[0]

    async def add_requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
        timeout_seconds: float | None = None,
        cache_salt: str = "",
    ) -> RequestGroup:
        """The same for `params.n` answers to each prompt: all are queued, or none. The group's
        streams are those of the first prompt, then those of the second, and so on.

        timeout_seconds: the streams raise `RequestError` (status 504) after it, and what runs is
        aborted; the server's own bound holds besides. cache_salt: only requests of the same one
        share cached prompts."""
        arrive_time = self._clock()
        self.check_serving()
        self._check_room(len(prompts) * params.n)
        each = params_of_each_answer(params)
        requests = []
        for prompt in prompts:
            token_ids = await self.tokenize(prompt, add_special_tokens=add_special_tokens)
            requests += [
                self.processor.inputs.build_request(
                    next(self._ids),
                    token_ids,
                    one,
                    arrive_time=arrive_time,
                    priority=priority,
                    cache_salt=cache_salt,
                )
                for one in each
            ]
        self.check_serving()  # it may have changed while a long text was tokenised
        self._check_room(len(requests))
        name, wake = request_id or f"req-{uuid.uuid4().hex}", asyncio.Event()
        group = RequestGroup([self._open(name, item, wake) for item in requests], wake)
        self._limit_time([request.id for request in requests], timeout_seconds)
        self._core.add_requests(requests)
        return group

    def _limit_time(self, numbers: Sequence[int], asked_seconds: float | None) -> None:
        bounds = [asked_seconds, self._request_timeout_seconds]
        seconds = min((bound for bound in bounds if bound is not None), default=None)
        if seconds is not None:
            for number in numbers:
                self._timers[number] = self._loop.call_later(
                    seconds, self._time_out, number, seconds
                )

    def _time_out(self, number: int, seconds: float) -> None:
        error = RequestError(
            f"the answer was not complete within {seconds:g} s; ask for fewer tokens or allow more "
            f"time",
            status=504,
            code="timeout",
        )
        self._fail(number, error)

    def _check_room(self, count: int) -> None:
        """Refuses what would wait behind too many others: a client can then try elsewhere."""
        waiting, bound = len(self._unanswered), self.config.scheduler.max_waiting_requests
        if bound and waiting + count > bound:
            raise RequestError(
                f"{waiting} requests wait for their first token already, and this server lets "
                f"{bound} wait; try again later, or with fewer prompts at once",
                status=429,
            )

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt. Raises `RequestError`."""
        tokenize = self.processor.inputs.tokenize
        if isinstance(prompt, str) and len(prompt) > _LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(tokenize, prompt, add_special_tokens=add_special_tokens)
        return tokenize(prompt, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of these tokens, without special ones. Raises `RequestError`."""
        detokenize = self.processor.inputs.detokenize
        if len(token_ids) > _LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(detokenize, token_ids)
        return detokenize(token_ids)

    async def call_utility(self, method: str, *args: Any) -> list[Any]:
        """What the engine cores' utility of this name returns, by rank. Raises `EngineDeadError`
        when a process ends before it answers, `AtomError` when the utility fails in any."""
        self.check_serving()
        call_id = next(self._ids)
        answer: asyncio.Future[list[Any]] = self._loop.create_future()
        self._calls[call_id] = answer
        self._core.call_utility(call_id, method, args)
        try:
            return await answer
        finally:
            del self._calls[call_id]

    def _open(self, name: str, request: Request, wake: asyncio.Event) -> RequestStream:
        number = request.id
        tells_of_prompt = request.params.prompt_logprobs is not None
        stream = RequestStream(
            name,
            len(request.prompt_token_ids),
            abort=lambda: self._abort(number),
            prompt_token_ids=request.prompt_token_ids if tells_of_prompt else (),
            wake=wake,
            limits=self._reader_limits,
            clock=self._clock,
        )
        self.processor.outputs.add(request, name)
        self._streams[number] = stream
        self._unanswered.add(number)
        self._idle.clear()
        return stream

    async def abort(self, request_id: str) -> None:
        """End the requests of this name that are open; their readers get an error."""
        for number, stream in list(self._streams.items()):
            if stream.name == request_id:
                self._fail(number, RequestError("the request was aborted", status=499))

    def check_serving(self) -> None:
        """Raises the error that tells why a request cannot be taken now."""
        if self.status.state is EngineState.DEAD:
            raise EngineDeadError(self.status.reason)
        if self.status.state is not EngineState.READY:
            raise RequestError(
                f"the engine is {self.status.state}: {self.status.reason}; try again soon",
                status=503,
            )

    @property
    def open_requests(self) -> int:
        return len(self._streams)

    def _abort(self, number: int) -> None:
        """The consumer left: forget the request and tell the engine."""
        self.processor.outputs.discard(number)
        self._forget(number)
        if self.status.state is not EngineState.DEAD:
            self._core.abort_requests([number])

    def _fail(self, number: int, error: Exception) -> None:
        self._streams[number].fail(error)
        self._abort(number)

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._unanswered.discard(number)
        timer = self._timers.pop(number, None)
        if timer is not None:
            timer.cancel()
        if not self._streams:
            self._idle.set()

    # ---- events -------------------------------------------------------------------------------

    def _on_event(self, event: CoreEvent) -> None:
        """On the core's thread: one hop to the loop, nothing else."""
        try:
            self._loop.call_soon_threadsafe(self._handle, event)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.debug("an event came after the event loop had ended")

    def _handle(self, event: CoreEvent) -> None:
        if isinstance(event, StreamBody):
            self._deliver(event)
        elif isinstance(event, RankStats):
            self.stats_by_rank[event.rank] = event.stats
        elif isinstance(event, CoreFailed):
            self._die(event.message)
        elif isinstance(event, CoreStalled):
            self._stall(event)
        elif isinstance(event, CoreResumed):
            self._resume(event.rank)
        elif isinstance(event, UtilityResponseBody):
            self._settle(event)
        elif self.status.state is not EngineState.STARTING:
            # A drain that began during start-up keeps its state; only the report is news.
            if isinstance(event, EngineReport):
                self.status = replace(self.status, report=event)
        elif isinstance(event, EngineReport):
            self.status = EngineStatus(EngineState.READY, report=event)
            self._decided.set()
        elif isinstance(event, ProgressBody):
            reason = f"{event.phase} {event.fraction:.0%}"
            self.status = EngineStatus(EngineState.STARTING, reason)
            if self._on_progress is not None:
                self._on_progress(event.phase, event.fraction)

    def _stall(self, event: CoreStalled) -> None:
        """Open requests stay: their rank may recover, and those of other ranks go on."""
        reason = f"rank {event.rank} has computed nothing for {event.silent_seconds:.0f} s"
        logger.error("the engine is stalled: %s", reason)
        self._stalled[event.rank] = reason
        self._show_stalls()

    def _resume(self, rank: int) -> None:
        self._stalled.pop(rank, None)
        logger.warning("rank %d gets on again", rank)
        self._show_stalls()

    def _show_stalls(self) -> None:
        if self.status.state not in (EngineState.READY, EngineState.STALLED):
            return  # draining or dead, which says more
        state = EngineState.STALLED if self._stalled else EngineState.READY
        reason = "; ".join(self._stalled.values())
        self.status = replace(self.status, state=state, reason=reason)

    def _settle(self, response: UtilityResponseBody) -> None:
        answer = self._calls.get(response.call_id)
        if answer is None or answer.done():  # the caller has left
            return
        if response.error is None:
            answer.set_result(response.result)
        else:
            answer.set_exception(AtomError(f"the engine could not do it: {response.error}"))

    def _deliver(self, body: StreamBody) -> None:
        try:
            step = self.processor.outputs.process(body, self._clock())
        except Exception as error:
            # A fault of ours must not leave callers waiting, nor end the others' requests.
            logger.exception("the outputs of a step could not be processed")
            self._fail_all_of(body, error)
            return
        for number, output in step.outputs:
            stream = self._streams.get(number)
            if stream is not None:
                stream.put(output)
                self._unanswered.discard(number)
                if output.finished:
                    self._forget(number)
        if step.abort_ids:
            self._core.abort_requests(step.abort_ids)

    def _fail_all_of(self, body: StreamBody, cause: Exception) -> None:
        concerned = {*body.rows()[0].tolist(), *(row.request_id for row in body.finished)}
        for number in concerned & self._streams.keys():
            error = RuntimeError("the answer could not be processed")
            error.__cause__ = cause
            self._fail(number, error)

    def _die(self, reason: str) -> None:
        if self.status.state is EngineState.DEAD:
            return
        self.status = replace(self.status, state=EngineState.DEAD, reason=reason)
        for number in list(self._streams):
            self._fail(number, EngineDeadError(f"the engine stopped: {reason}"))
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(f"the engine stopped: {reason}"))
        self._decided.set()
        self._died.set()
