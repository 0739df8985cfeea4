"""The engine core in this process: scheduler and runner behind the pipeline, no sockets, no text.

What offline benchmarks and tests of what is computed drive: token ids in, steps out. The same
classes that a served engine runs.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from atom.config import EngineOptions, build_config
from atom.images.item import PlacedImage
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.choice import build_executor
from atom.model_engine.kv_disk_setup import build_store
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.request_image import RequestImage
from atom.model_engine.runner.step_graphs import Progress
from atom.model_engine.schedule.step_result import StepResult
from atom.model_engine.step_pipeline import StepPipeline, build_guided, build_scheduler
from atom.sampling_params import SamplingParams


class OfflineEngine:
    def __init__(
        self,
        model: str,
        *,
        depth: int | None = None,
        progress: Progress = lambda phase, share: None,
        **options: Any,
    ) -> None:
        """depth: steps that the host is behind; None for what the device calls for. progress: is
        told how far the start is."""
        started = time.perf_counter()
        self.config = build_config(EngineOptions.of(model=model, **options))
        self.executor = self.build_executor()
        self.report = self.executor.initialize(progress)
        pages = self.executor.pages
        store = build_store(self.config, self.report, pages)
        self.scheduler = build_scheduler(self.config, self.report, pages, store)
        depth = self.executor.steps_behind if depth is None else depth
        self.guided = build_guided(self.config)
        self.pipeline = StepPipeline(
            self.scheduler,
            self.executor,
            depth=depth,
            guided=self.guided,
            join=self.executor.join,
        )
        self.start_seconds = time.perf_counter() - started
        self._ids = itertools.count()

    def build_executor(self) -> Executor:
        """Return what runs the batches of `config`."""
        return build_executor(self.config, end)

    def close(self) -> None:
        """End what the executor and the tiers have started."""
        if self.scheduler.tiers is not None:
            self.scheduler.tiers.close()
        self.executor.close()

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        lora: LoRARequest | None = None,
        generated: Sequence[int] = (),
        images: Sequence[PlacedImage] = (),
    ) -> int:
        """Queue a request; the answer goes on behind what of it was `generated` before. images: of
        its prompt."""
        request_id = next(self._ids)
        limit = self.config.model.max_model_len
        self.pipeline.add(
            Request(
                id=request_id,
                prompt_token_ids=list(prompt),
                params=params,
                max_total_tokens=min(limit, len(prompt) + (params.max_tokens or limit)),
                arrive_time=time.monotonic(),
                lora=lora,
                output_token_ids=list(generated),
                images=[RequestImage.of(image) for image in images],
            )
        )
        return request_id

    def step(self) -> StepResult | None:
        """Run one step, or wait for pages that are being read if blocks are short until then."""
        result = self.pipeline.step(time.monotonic())
        if result is None and self.pipeline.is_blocked:
            self.pipeline.wait_for_pages()
        return result

    def has_work(self) -> bool:
        """Return whether requests are open; waits for a grammar or a mask when they all do."""
        if not self.pipeline.has_work():
            self.pipeline.pause(time.monotonic())
        if not self.pipeline.has_requests():
            return False
        if not self.pipeline.has_work() and not self.pipeline.wait_for_pages():
            self.guided.wait()
        return True

    def run(self) -> int:
        """Step until all requests have ended; the tokens that came out."""
        count = 0
        while self.has_work():
            result = self.step()
            count += 0 if result is None else len(result.token_ids)
        return count

    def random_prompt(self, length: int, draw: np.random.Generator) -> list[int]:
        tokens: list[int] = draw.integers(0, self.config.model.vocab_size, size=length).tolist()
        return tokens


def free_memory() -> None:
    """Give back the memory of closed engines that no variable names any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def end(reason: str, user_error: bool) -> None:
    """A rank is gone: there is nothing to measure any more."""
    print(reason, file=sys.stderr)
    os._exit(1)
