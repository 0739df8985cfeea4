"""LLMEngine: the engine for plain Python programs.

    engine = LLMEngine(model="Qwen/Qwen3-0.6B")
    for answer in engine.generate(["Hello"], SamplingParams(max_tokens=32)):
        print(answer["text"])

Synchronous: the caller's thread turns engine steps into text. Torch-free itself; the engine runs in
its own process behind CoreManager. `atom generate` and `atom bench` are its users.
"""

from __future__ import annotations

import itertools
import logging
import queue
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypedDict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from atom.config import Config, EngineOptions, build_config
from atom.errors import ConfigError, EngineDeadError, RequestError
from atom.images.item import PlacedImage
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.front.handover.continuations import Continuations
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.input_processor import Prompt
from atom.model_engine.front.loras.served_loras import ServedLoras
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.step_delivery import StepDelivery
from atom.model_engine.request import (
    FinishReason,
    LoRARequest,
    Request,
    RequestOutput,
    TokenLogprobs,
)
from atom.model_engine.wire.core_port import (
    CoreEvent,
    CoreFactory,
    CoreFailed,
    CoreLost,
    CorePort,
    CoreStalled,
)
from atom.model_engine.wire.core_stats import StatsBody
from atom.model_engine.wire.engine_protocol import EngineReport, ProgressBody, RankStats, StreamBody
from atom.model_engine.wire.rank_answers import RankStatsBoard
from atom.progress import StartupProgress
from atom.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

__all__ = ["Completion", "InputOutputProcessor", "LLMEngine"]


class Completion(TypedDict):
    """Represent one finished answer. Times in seconds: latency from submission to the last token,
    ttft to the first, tpot per further token (0 if there is only one). logprobs: one entry per
    output token, prompt_logprobs: one per prompt token (the first None); None unless requested."""

    text: str
    token_ids: list[int]
    finish_reason: str
    finish_detail: str
    num_tokens_input: int
    num_tokens_output: int
    num_tokens_cached: int
    latency: float
    ttft: float
    tpot: float
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None


@dataclass(slots=True)
class _Collected:
    """Collect the outputs of one request of a `generate` call."""

    arrive_time: float
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    first_token_time: float | None = None
    last_token_time: float = 0.0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    last: RequestOutput | None = None


class LLMEngine:
    """Starts an engine and blocks until it is ready; a context manager, or `close` it."""

    def __init__(
        self,
        model: str | None = None,
        *,
        config: Config | None = None,
        core_factory: CoreFactory = CoreManager,
        **options: Any,
    ) -> None:
        """model: a checkpoint folder or hub id; options: fields of `EngineOptions`. Or a `config`.

        Raises `ModelError`, `ConfigError`, or `EngineDeadError` when start-up fails."""
        if (model is None) == (config is None):
            raise ConfigError("give LLMEngine either model=… or config=…")
        if config is None:
            config = build_config(EngineOptions.of(model=str(model), **options))
        self.config = config
        self.processor = InputOutputProcessor(config)
        self.processor.warn_of_misfits()
        self._events: queue.SimpleQueue[CoreEvent] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._loras = ServedLoras(config.lora, config.model.served_name)
        self._rank_stats = RankStatsBoard()
        self._core: CorePort = core_factory(config, self._events.put)
        # Also ends the engine process when the program forgets to, or ends by an exception.
        self._closer = weakref.finalize(self, self._core.shutdown)
        # Not a method of ours: a circle would keep a forgotten engine, and its process, alive.
        self._open = OpenRequests(
            self.processor.outputs,
            partial(_abort, self._core, self._closer),
            keeps_answers=config.parallel.data_parallel_size > 1,
        )
        self._delivery = StepDelivery(self.processor.outputs, self._open, time.monotonic)
        self._continuations = Continuations(self._open, self._delivery, self._ids)
        self._core.start()
        self.report = self._wait_ready()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine process. May be called again."""
        self._closer()

    @property
    def stats(self) -> StatsBody | None:
        """Return the latest statistics, summed over all ranks; None before the first step."""
        return self._rank_stats.total

    # ---- generation ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_special_tokens: bool = True,
        model: str | Sequence[str | None] | None = None,
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> list[Completion]:
        """Answers in the order of `prompts` (texts, or lists of token ids); where `n` asks for
        several answers to a prompt, they follow each other.

        sampling_params: one for all, or one each. use_tqdm: show a progress bar (the name is the
        one callers of other engines know). model: the name of an adapter, for all or of each; None
        for the model alone. images: of each prompt, which must then be token ids that have their
        places. Raises `RequestError` on the first bad prompt, before
        anything is generated."""
        each = _params_of_each(prompts, sampling_params)
        count = sum(params.n for params in each)
        collected = [_Collected(arrive_time=time.monotonic()) for _ in range(count)]
        with _progress_bar(enabled=use_tqdm) as progress:
            task = progress.add_task("generating", total=count, rate="")
            begun, tokens = time.monotonic(), 0
            for index, output in self.stream(
                prompts, each, add_special_tokens=add_special_tokens, model=model, images=images
            ):
                _collect(collected[index], output)
                tokens += len(output.output_tokens)
                if output.finished:
                    rate = tokens / max(time.monotonic() - begun, 1e-9)
                    progress.update(task, advance=1, rate=f"{rate:,.0f} tokens/s")
        return [_completion(item) for item in collected]

    def stream(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_special_tokens: bool = True,
        model: str | Sequence[str | None] | None = None,
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Yield (index of the answer, output) as they arrive; leaving early aborts the open
        requests. Answers are numbered through: the `n` of the first prompt, then those of the
        second. model, images: as of `generate`. Only one such iteration at a time: an engine has
        one caller."""
        if len(self._open):
            raise RequestError("this engine is still generating; end that iteration first")
        each = _params_of_each(prompts, sampling_params)
        loras = self._loras_of(prompts, model)
        placed = _images_of_each(prompts, images)
        requests = self._requests(prompts, each, loras, placed, add_special_tokens)
        group = self._open.open(map(str, itertools.count()), requests)
        self._core.add_requests(requests)
        try:
            while not group.drained:
                self._step()
                for index, output in group.take():
                    refusal = output.refusal()
                    if refusal is not None:
                        raise refusal
                    yield index, output
        finally:
            group.close()

    def _requests(
        self,
        prompts: Sequence[Prompt],
        each: Sequence[SamplingParams],
        loras: Sequence[LoRARequest | None],
        placed: Sequence[Sequence[PlacedImage]],
        add_special_tokens: bool,
    ) -> list[Request]:
        if not self._closer.alive:
            raise EngineDeadError("the engine is closed; make a new LLMEngine")
        inputs = self.processor.inputs
        requests = []
        for prompt, params, lora, images in zip(prompts, each, loras, placed, strict=True):
            whole = inputs.tokenize(
                prompt,
                add_special_tokens=add_special_tokens,
                for_answer=params.truncate_prompt_tokens is None,
            )
            inputs.check_pools(False)
            prepared = inputs.prepare(params)
            packed = inputs.pack_images(images, prepared)
            token_ids = inputs.truncated(whole, prepared)
            requests += inputs.build_requests(
                *(self._ids, token_ids, prepared),
                arrive_time=time.monotonic(), lora=lora, images=packed,
            )  # fmt: skip
        return requests

    def _loras_of(
        self, prompts: Sequence[Prompt], model: str | Sequence[str | None] | None
    ) -> list[LoRARequest | None]:
        """Find the adapter of each prompt. Raises `RequestError` on an unknown one."""
        names = [model] * len(prompts) if model is None or isinstance(model, str) else model
        if len(names) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts but {len(names)} models; give one, or one each"
            )
        return [self._lora_of(name) for name in names]

    def _lora_of(self, name: str | None) -> LoRARequest | None:
        found = self._loras.get(name)
        if found is None and name not in (None, self.config.model.served_name):
            known = ", ".join(lora.name for lora in self._loras) or "none"
            raise RequestError(
                f"no adapter {name!r} is served; adapters: {known} (lora=LoraConfig(…) names them)"
            )
        return None if found is None else found.request

    # ---- events -------------------------------------------------------------------------------

    def _lose(self, event: CoreLost) -> None:
        """Let the other ranks continue a lost rank's requests."""
        logger.error("the engine goes on with a rank less: %s", event.message)
        self._rank_stats.lose(event.rank)
        again = self._continuations.of(
            event.request_ids, lambda: EngineDeadError(event.message), lost=True
        )
        self._core.add_requests(again)

    def _step(self) -> None:
        """Wait for the next event, and put its outputs into the streams."""
        event = self._events.get()
        if isinstance(event, CoreFailed):
            self.close()
            raise EngineDeadError(event.message)
        if isinstance(event, CoreLost):
            self._lose(event)
        if isinstance(event, CoreStalled):
            logger.warning(
                "rank %d has computed nothing for %.0f s", event.rank, event.silent_seconds
            )
        told = event.rank_stats if isinstance(event, StreamBody) else event
        if isinstance(told, RankStats):
            self._rank_stats.put(told)
        if isinstance(event, StreamBody):
            self._delivery.take(event)
            self._open.deliver(self._delivery.taken())

    def _wait_ready(self) -> EngineReport:
        with StartupProgress() as progress:
            while True:
                event = self._events.get()
                if isinstance(event, EngineReport):
                    return event
                if isinstance(event, ProgressBody):
                    progress.show(event.phase, event.fraction)
                if isinstance(event, CoreFailed):
                    self.close()
                    raise EngineDeadError(event.message)


def _abort(core: CorePort, closer: weakref.finalize[..., Any], numbers: Sequence[int]) -> None:
    if closer.alive:
        core.abort_requests(numbers)


def _params_of_each(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    if isinstance(prompts, str):
        raise RequestError("prompts must be a list; put the one prompt into brackets")
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if not all(isinstance(each, SamplingParams) for each in params):
        raise RequestError(
            "params must be SamplingParams, or a list of them: SamplingParams(max_tokens=32)"
        )
    if len(params) != len(prompts):
        raise RequestError(
            f"{len(prompts)} prompts but {len(params)} sampling params; give one, or one each"
        )
    return params


def _images_of_each(
    prompts: Sequence[Prompt], images: Sequence[Sequence[PlacedImage]]
) -> Sequence[Sequence[PlacedImage]]:
    if not images:
        return [()] * len(prompts)
    if len(images) != len(prompts):
        raise RequestError(
            f"{len(prompts)} prompts but images of {len(images)}; give those of each"
        )
    if any(own and isinstance(prompt, str) for prompt, own in zip(prompts, images, strict=True)):
        raise RequestError(
            "a prompt with images must be token ids, in which the images have their places"
        )
    return images


def _progress_bar(*, enabled: bool) -> Progress:
    """Make a progress bar on standard error: standard output stays the program's own."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
        console=Console(stderr=True),
        disable=not enabled,
    )


def _collect(item: _Collected, output: RequestOutput) -> None:
    item.texts.append(output.text)
    if output.output_tokens:
        item.token_ids += output.output_tokens
        item.last_token_time = time.monotonic()
        if item.first_token_time is None:
            item.first_token_time = item.last_token_time
    item.logprobs += output.logprobs or ()
    if output.prompt_logprobs is not None:
        item.prompt_logprobs = list(output.prompt_logprobs)
    item.last = output


def _completion(item: _Collected) -> Completion:
    last = item.last
    assert last is not None
    if last.finish_reason is FinishReason.ERROR:
        raise EngineDeadError(f"the engine could not answer: {last.finish_detail}")
    count = len(item.token_ids)
    first = item.last_token_time if item.first_token_time is None else item.first_token_time
    return Completion(
        text="".join(item.texts),
        token_ids=item.token_ids,
        finish_reason=str(last.finish_reason),
        finish_detail=str(last.finish_detail),
        num_tokens_input=last.num_prompt_tokens,
        num_tokens_output=count,
        num_tokens_cached=last.num_cached_tokens,
        latency=item.last_token_time - item.arrive_time,
        ttft=first - item.arrive_time,
        tpot=(item.last_token_time - first) / (count - 1) if count > 1 else 0.0,
        logprobs=item.logprobs or None,
        prompt_logprobs=item.prompt_logprobs,
    )
