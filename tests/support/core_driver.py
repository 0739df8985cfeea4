"""CoreDriver: scheduler and runner in this process, stepped until every request has ended.

The engine loop without sockets, for tests of what is computed rather than of how it travels.
"""

from __future__ import annotations

import itertools
from typing import Any

from atom.config import EngineOptions, build_config
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.request import Request
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import StepPipeline
from atom.sampling_params import SamplingParams


class CoreDriver:
    def __init__(
        self, model: str, *, depth: int | None = None, device: str = "cpu", **options: Any
    ) -> None:
        """depth: steps that the host is behind; None for what the device calls for."""
        self.config = build_config(EngineOptions(model=model, device=device, **options))
        self.runner = ModelRunner(self.config)
        self.report = self.runner.initialize(lambda phase, share: None)
        blocks = BlockManager(
            self.report.num_blocks,
            self.report.block_size,
            enable_prefix_caching=self.config.cache.enable_prefix_caching,
        )
        self.scheduler = Scheduler(
            self.config.scheduler,
            blocks,
            max_model_len=self.config.model.max_model_len,
            eos_token_ids=self.config.model.eos_token_ids,
        )
        depth = self.runner.steps_behind if depth is None else depth
        self.pipeline = StepPipeline(self.scheduler, self.runner, depth=depth)
        self.vocab_size = self.config.model.vocab_size
        self._ids = itertools.count()
        self._steps = itertools.count()

    def generate(self, prompts: list[list[int]], **params: Any) -> list[list[int]]:
        """Greedy unless told otherwise; all prompts at once; their new tokens in order."""
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        tokens: dict[int, list[int]] = {}
        for prompt in prompts:
            tokens[self.add(prompt, sampling)] = []
        while self.pipeline.has_work():
            result = self.pipeline.step(float(next(self._steps)))
            if result is None:
                continue
            for row, token in zip(result.request_ids, result.token_ids, strict=True):
                tokens[int(row)].append(int(token))
            self.scheduler.blocks.pool.check_integrity()
        return list(tokens.values())

    def add(self, prompt: list[int], params: SamplingParams) -> int:
        request_id = next(self._ids)
        limit = self.config.model.max_model_len
        total = min(limit, len(prompt) + (params.max_tokens or limit))
        self.scheduler.add(
            Request(
                id=request_id,
                prompt_token_ids=prompt,
                params=params,
                max_total_tokens=total,
                arrive_time=0.0,
            )
        )
        return request_id
