"""Builders of engine values with defaults that fit most tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from atom.config import SchedulerConfig
from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.kv_disk.disk_moves import DiskStore
from atom.model_engine.page_moves import PageMover
from atom.model_engine.request import Request
from atom.model_engine.schedule.tiers.kv_tiers import KVTiers, TierSetup
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.sampling_params import SamplingParams
from atom.sizing.mask_rule import sliding_window
from atom.sizing.options.scheduling import Fairness

EOS = 2


def make_scheduler(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    max_model_len: int = 64,
    policy: str = "mixed",
    threshold: int = 0,
    delay_factor: float = 0.0,
    max_step_seconds: float = 0.0,
    prefix_caching: bool = True,
    num_speculative_tokens: int = 0,
    windows: tuple[int | None, ...] = (None,),
    fairness: Fairness = "clients",
    blocks_type: type[BlockManager] = BlockManager,
    tier: tuple[TierSetup, PageMover, DiskStore | None] | None = None,
) -> Scheduler:
    config = SchedulerConfig(
        policy=policy,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_prefill_token_threshold=threshold,
        delay_factor=delay_factor,
        max_step_seconds=max_step_seconds,
        num_speculative_tokens=num_speculative_tokens,
        fairness=fairness,
    )
    blocks = blocks_type(
        num_blocks,
        block_size,
        enable_prefix_caching=prefix_caching,
        masks=tuple(map(sliding_window, windows)),
        policy="lru" if tier is None else tier[0].policy,
    )
    tiers = None if tier is None else KVTiers(blocks, *tier)
    return Scheduler(config, blocks, max_model_len=max_model_len, eos_token_ids=[EOS], tiers=tiers)


def make_request(
    request_id: int = 0,
    prompt: list[int] | int = 5,
    *,
    max_tokens: int = 4,
    arrive_time: float = 0.0,
    priority: int = 0,
    cache_salt: str = "",
    client_id: str = "",
    **params: object,
) -> Request:
    """prompt: token ids, or how many distinct ones (from 10 on)."""
    tokens = list(range(10, 10 + prompt)) if isinstance(prompt, int) else prompt
    return Request(
        id=request_id,
        prompt_token_ids=tokens,
        params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        max_total_tokens=len(tokens) + max_tokens,
        arrive_time=arrive_time,
        priority=priority,
        cache_salt=cache_salt,
        client_id=client_id,
    )


@dataclass
class FakeModel:
    """Steps a scheduler; every sampling row gets `token`, and what happened is kept."""

    scheduler: Scheduler
    token: int = 7
    clock: float = 0.0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, FinishedRow] = field(default_factory=dict)
    batches: list[ScheduledBatch] = field(default_factory=list)

    def step(self) -> ScheduledBatch | None:
        self.clock += 1.0
        batch = self.scheduler.schedule(self.clock)
        if batch is None:
            return None
        self.batches.append(batch)
        sampled = np.full(int(batch.samples.sum()), self.token, dtype=np.int32)
        result = self.scheduler.update(batch, ScheduledBatchOutput(token_ids=sampled))
        for request_id, token in zip(result.request_ids, result.token_ids, strict=True):
            self.tokens.setdefault(int(request_id), []).append(int(token))
        for row in result.finished:
            self.finished[row.request_id] = row
        self.scheduler.blocks.pool.check_integrity()
        return batch

    def run(self, limit: int = 1000) -> None:
        """Step until nothing is left; an engine that makes no progress fails the test."""
        for _ in range(limit):
            if not self.scheduler.has_work():
                return
            assert self.step() is not None, "work but nothing to schedule"
        raise AssertionError(f"still at work after {limit} steps")
