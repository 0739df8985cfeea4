"""AsyncLLMEngine: the engine for asyncio programs, above all the HTTP server.

    async with AsyncLLMEngine.of_model("Qwen/Qwen3-0.6B") as engine:
        async for output in engine.generate("Hello", SamplingParams(max_tokens=32)):
            print(output.text, end="")

Bridges CoreManager's thread to the event loop with one hop per engine step, checks and queues
requests, and hands outputs to their streams. Torch-free; knows no HTTP. All of its methods belong
to the loop that called `start`.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec

from atom.client_figures import ClientCounts
from atom.config import Config, EngineOptions, build_config
from atom.config_values import OpenRequestsMode, SleepLevel
from atom.errors import RequestError
from atom.images.item import PlacedImage
from atom.model_engine.control import Answer, Control
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.front.admission.admission import Admission
from atom.model_engine.front.admission.deadlines import Deadlines
from atom.model_engine.front.admission.expectations import Expectations
from atom.model_engine.front.async_text import AsyncText
from atom.model_engine.front.cache_salts import CacheSalts
from atom.model_engine.front.core_event_handler import CoreEventHandler
from atom.model_engine.front.core_event_hop import CoreEventHop
from atom.model_engine.front.core_link import CoreLink
from atom.model_engine.front.engine_lifecycle import EngineLifecycle, EngineStatus
from atom.model_engine.front.fingerprint import Fingerprint
from atom.model_engine.front.handover.continuations import Continuations
from atom.model_engine.front.handover.handed_intake import HandedIntake
from atom.model_engine.front.handover.handed_request import HandedRequest
from atom.model_engine.front.handover.handover import Handover
from atom.model_engine.front.handover.relays import Replicas
from atom.model_engine.front.idle_sleep import IdleSleep
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.input_processor import Prompt
from atom.model_engine.front.loras.adapter_digests import AdapterDigests
from atom.model_engine.front.loras.lora_changes import LoraChanges
from atom.model_engine.front.loras.served_loras import ServedLoras
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.pauses import Pauses
from atom.model_engine.front.request_intake import RequestIntake
from atom.model_engine.front.request_stream import ReaderLimits, RequestGroup, RequestStream
from atom.model_engine.front.step_delivery import StepDelivery
from atom.model_engine.front.utility_calls import UtilityCalls
from atom.model_engine.request import RequestOutput
from atom.model_engine.request_trace import QueuedCall, traced
from atom.model_engine.transfer_legs import Leg
from atom.model_engine.wire.core_port import CoreFactory
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import EngineReport, RankStats, first_id
from atom.model_engine.wire.rank_answers import RankStatsBoard
from atom.sampling_params import SamplingParams


class AsyncLLMEngine:
    """Run one engine and track its open requests. Use as an async context manager."""

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
        replicas: Replicas | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """processor: loaded from the model's folder unless given. client: this engine's number
        among the clients of the engine processes. on_progress: called with the phase of start-up
        and its share done. request_timeout_seconds: bound of any request, from its arrival to its
        last token; None for none. reader_limits: how far a stream's reader may lag; None for no
        limit. replicas: of the model, on which open answers may continue. Raises `ModelError`."""
        self.config = config
        if processor is None:
            processor = InputOutputProcessor(config)
            processor.warn_of_misfits()
        self.processor = processor
        self.text = AsyncText(self.processor)
        self.images = processor.images
        self.image_memory = None if self.images is None else self.images.memory
        self._rank_stats = RankStatsBoard(wall_clock)
        self._lifecycle = EngineLifecycle(on_progress, holds_requests=config.sleep.holds_requests)
        self._requests = OpenRequests(
            self.processor.outputs,
            lambda numbers: self._link.abort(numbers),
            reader_limits=reader_limits,
            is_contended=lambda: bool(self._rank_stats.num_waiting),
            keeps_answers=replicas is not None or config.parallel.data_parallel_size > 1,
            image_memory=self.image_memory,
            clock=clock,
        )
        self.expectations = Expectations(
            lambda: self._rank_stats.by_rank, lambda: self._requests.num_unanswered
        )
        self.deadlines = Deadlines(config.scheduler)
        self._admission = Admission(
            self._lifecycle,
            self._requests,
            config.scheduler.max_waiting_requests,
            expectations=self.expectations,
            fair=config.scheduler.fairness == "clients",
            images=self.image_memory,
        )
        if self.images is not None:
            self.images.admit = self._admission.check
            self.images.timeout_seconds = request_timeout_seconds
        self.loras = ServedLoras(config.lora, config.model.served_name)
        self.cache_salts = CacheSalts()
        digests = self._digests = AdapterDigests(lambda: self.pauses.weights_version)
        self._ids = itertools.count(first_id(client))
        self._calls = UtilityCalls(self._ids, lambda *asked: self._link.ask(*asked))
        self.lora_changes = LoraChanges(self.loras, self.call, self._digests)
        self.pauses = Pauses(config.model, self._lifecycle, self._requests, self._calls.call)
        idle = config.sleep.idle_seconds
        self._idle = IdleSleep(idle, self._lifecycle, self._requests, self.pauses, clock)
        self._fingerprint = Fingerprint(config)
        self._request_timeout_seconds = request_timeout_seconds
        self._events = CoreEventHop(lambda events: self._handler.handle(events))
        self._core = core_factory(config, self._events.put)
        self._delivery = StepDelivery(self.processor.outputs, self._requests, clock)
        again = Continuations(self._requests, self._delivery, self._ids)
        self._link = CoreLink(self._core, self._lifecycle, self._requests, self._calls, again)
        if replicas is not None and config.model.pooling is None:
            handover = Handover(replicas, self._requests, self._delivery, digests.version)
            self._link.handover = handover
        self._handler = CoreEventHandler(
            self._link,
            self._calls,
            self.pauses,
            requests=self._requests,
            delivery=self._delivery,
            rank_stats=self._rank_stats,
            lifecycle=self._lifecycle,
        )
        inputs = self.processor.inputs
        self._intake = RequestIntake(inputs, self.text, self._ids, clock)
        self._handed = HandedIntake(
            inputs, self._intake, self.loras, self._digests.version, self.image_memory
        )

    @staticmethod
    def of_model(model: str, **options: Any) -> AsyncLLMEngine:
        """Build an engine of a model, without starting it. model: a checkpoint folder or hub id;
        options: fields of `EngineOptions`. Raises `ModelError` or `ConfigError`."""
        return AsyncLLMEngine(build_config(EngineOptions.of(model=model, **options)))

    # ---- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load; `status` has the progress, `wait_ready` waits for the end."""
        await self._digests.read_all(self.config.lora)
        if self.images is not None:
            await self.images.prepare()
        self._events.start()
        self._core.start()
        self._idle.start()

    async def wait_ready(self) -> EngineReport:
        """Return the start-up report. Raises `EngineDeadError` if start-up failed."""
        return await self._lifecycle.wait_ready()

    async def __aenter__(self) -> AsyncLLMEngine:
        await self.start()
        try:
            await self.wait_ready()
        except BaseException:
            await self.shutdown()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()

    @property
    def status(self) -> EngineStatus:
        return self._lifecycle.status

    def answering(self, model: str | None) -> str:
        """Return the name of the model or adapter that answers a request for `model`."""
        lora = self.loras.get(model)
        return self.config.model.served_name if lora is None else lora.name

    @property
    def stats_by_rank(self) -> dict[int, RankStats]:
        """Return the latest statistics of each rank."""
        return self._rank_stats.by_rank

    @property
    def stats(self) -> StatsBody | None:
        """Return the statistics summed over all ranks; None before the first report."""
        return self._rank_stats.total

    @property
    def stats_told_at(self) -> float | None:
        """Return since when every rank has reported again, in seconds since 1970."""
        return self._rank_stats.told_at

    async def wait_dead(self) -> str:
        """Returns the reason once the engine process is gone."""
        return await self._lifecycle.wait_dead()

    async def wait_maimed(self) -> str:
        """Returns the reason once a rank, or another process of the server, is gone for good."""
        return await self._lifecycle.wait_maimed()

    def maim(self, reason: str) -> None:
        """Record that another part of the server is gone: finish open requests, take no more."""
        self._lifecycle.maim(reason)

    async def drain(self, timeout_seconds: float) -> int:
        """Take no more requests and wait for the running ones; then abort the rest (each gets an
        error). Returns how many were aborted."""
        self._lifecycle.begin_drain()
        await self._requests.wait_idle(timeout_seconds)
        message = (
            f"the server shut down before the answer was complete "
            f"(it waited {timeout_seconds:g} s); send the request again"
        )
        return self._requests.fail_all(lambda: RequestError(message, status=503))

    async def hand_over(self) -> bool:
        """Let other replicas continue the open answers, as far as they take them. Returns whether
        the engine process is idle then. Answers that continue elsewhere stay open here."""
        return await self._link.hand_over()

    async def end_core(self, timeout_seconds: float = 10.0) -> None:
        """End the engine process, which is idle; answers that continue elsewhere stay open."""
        await self._link.end(timeout_seconds)

    async def wait_idle(self, timeout_seconds: float) -> None:
        """Wait until no request is open, but no longer than that."""
        await self._requests.wait_idle(timeout_seconds)

    async def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """End the engine process. Open requests get an error."""
        self._idle.stop()
        self.text.close()
        if self.images is not None:
            self.images.close()
        await self._link.shut_down(timeout_seconds)

    # ---- requests -----------------------------------------------------------------------------

    async def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs as they arrive. Closing the iterator early aborts the request."""
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
        """Check and queue a request for one answer; the stream's owner must exhaust or close it.
        Raises `RequestError` if it cannot be served (status 503 while the engine is not
        serving)."""
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
        return RequestStream(group)

    async def add_requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        add_special_tokens: bool = True,
        priority: int = 0,
        timeout_seconds: float | None = None,
        deadline_seconds: float | None = None,
        cache_salt: str = "",
        client_id: str = "",
        model: str | None = None,
        pools: bool = False,
        leg: Leg | None = None,
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> RequestGroup:
        """Queue `params.n` answers to each prompt, all or none. The group numbers the answers to
        the first prompt, then to the second, and so on. timeout_seconds: the group then raises
        `RequestError` (status 504), and its requests are aborted; the server's own bound applies
        too. deadline_seconds: until the first token; None for the server's own. Requests past it
        are refused or ended, as `deadline_action` has it. cache_salt: only requests of the same one
        share cached prompts, and of one client if `cache_salts` requires it. client_id: as in
        `Request`. model: an adapter's name, or any other for the model alone. pools: for vectors,
        of a pooling model. leg: of a request that another engine shares; its one prompt has one
        answer. images: of each prompt, which then is token ids."""
        self.processor.inputs.check_pools(pools)
        refused_after, ended_after = self.deadlines.bounds(deadline_seconds)
        if pools:  # which bring no token
            refused_after = ended_after = None
        self._admission.check(len(prompts) * params.n, client_id, refused_after)
        lora = self.loras.get(model)
        requests = await self._intake.requests_of(
            prompts,
            params,
            add_special_tokens=add_special_tokens,
            priority=priority,
            cache_salt=self.cache_salts.of(client_id, cache_salt),
            client_id=client_id,
            lora=None if lora is None else lora.request,
            images=images,
        )
        if leg is not None or deadline_seconds is not None:
            told = {"kv_transfer": leg, "deadline_seconds": deadline_seconds}
            requests = [msgspec.structs.replace(each, **told) for each in requests]
        bounds = [timeout_seconds, self._request_timeout_seconds]
        await self._admission.wait_awake(len(requests), client_id, *bounds)
        # Both may have changed while a long text was tokenised.
        self._admission.check(len(requests), client_id, refused_after)
        name = request_id or f"req-{uuid.uuid4().hex}"
        group = self._requests.open(itertools.repeat(name), requests)
        version = self.pauses.weights_version
        group.fingerprint = self._fingerprint.of(version, self.status.report)
        group.trace = traced(QueuedCall(name, self.config.model.served_name, params, requests))
        self._requests.limit_time(group, bounds)
        if ended_after is not None:
            self._requests.limit_first_token(group, ended_after, self.expectations.missed)
        self._core.add_requests(requests)
        return group

    async def continue_request(self, handed: HandedRequest) -> tuple[RequestGroup, str]:
        """Go on with an answer that another replica has begun: its tokens, and by which weights.
        Raises as `add_requests`, and `RequestError` (409) where the weights are others."""
        request = self._handed.request_of(handed)
        client, seconds = request.client_id, self._request_timeout_seconds
        refused_after, _ = self.deadlines.bounds(request.deadline_seconds)
        self._admission.check(1, client, None if request.output_token_ids else refused_after)
        await self._admission.wait_awake(1, client, seconds)
        self._admission.check(1, client)
        self._handed.check_room(request)
        group = self._requests.open([handed.name], [request], shows_text=False)
        model_name = self.config.model.served_name
        group.trace = traced(QueuedCall(handed.name, model_name, request.params, [request]))
        self._core.add_requests([request])
        return group, self._digests.version(request.lora)

    async def tokenize(
        self, prompt: Prompt, *, add_special_tokens: bool = True, client_id: str = ""
    ) -> list[int]:
        """Return the token ids of a prompt, which may be longer than the context. Raises
        `RequestError`."""
        (token_ids,) = await self.text.tokenize(
            [prompt], client_id, add_special_tokens=add_special_tokens, for_answer=False
        )
        return token_ids

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True, client_id: str = ""
    ) -> str:
        """Return the text of these tokens. Raises `RequestError`."""
        return await self.text.detokenize(
            token_ids, client_id, skip_special_tokens=skip_special_tokens
        )

    async def call(self, call: Control[Answer]) -> list[Answer]:
        """Make a control call in every engine core and return the answers by rank. Raises
        `EngineDeadError` if a process ends before it answers, `AtomError` if the call fails on
        any rank. Wakes a sleeping engine first if requests wake it."""
        return await self.call_utility(call.name, *call.args)

    async def call_utility(self, method: str, *args: Any) -> list[Any]:
        """Make a control call by its name, as `call` does."""
        if self._lifecycle.wakes_for_requests:
            await self._lifecycle.wait_awake()
        self._lifecycle.check_awake()
        return await self._calls.call_named(method, args)

    # ---- sleep --------------------------------------------------------------------------------

    @property
    def is_sleeping(self) -> bool:
        return self._lifecycle.is_asleep

    @property
    def holds_asleep(self) -> bool:
        return self._lifecycle.holds_asleep

    @property
    def requests_held(self) -> int:
        """Count requests that wait for a pause's end."""
        return self._admission.num_held

    async def sleep(
        self, level: SleepLevel, mode: OpenRequestsMode = OpenRequestsMode.WAIT
    ) -> None:
        """Release the device's memory, as `Pauses.sleep` does; a sleeping engine stays asleep."""
        await self.pauses.sleep(level, mode)

    async def wake_up(self) -> None:
        """Take the memory again and serve; an engine that is awake stays so. Raises as
        `call_utility`; then it sleeps on."""
        await self.pauses.wake_up()

    async def abort(self, request_id: str) -> None:
        """End the requests of this name that are open; their readers get an error."""
        self._requests.fail_named(
            request_id, lambda: RequestError("the request was aborted", status=499)
        )

    def check_serving(self) -> None:
        """Raise the error that explains why a request cannot be taken now, if there is one."""
        self._lifecycle.check_serving()

    @property
    def open_requests(self) -> int:
        return len(self._requests)

    def counts_by_client(self) -> dict[str, ClientCounts]:
        """Return each client's request and token totals and its open requests, by label."""
        return self._requests.counts_by_client()
