"""EngineForm: one copy of a model on its devices as the engine would run it: its blocks and limits.

The blocks come from the plan of memory (`room`), or from an engine that reported them. The
scheduler is built by the engine's own `build_scheduler`, from the same two values that a served
engine gives it. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import atom
from atom.advisor.extras import Adapters, Drafts, Pictures
from atom.config import (
    CacheConfig,
    Config,
    ExecutionOptions,
    GenerationDefaults,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from atom.model_engine.kv_disk.disk_moves import DiskStore
from atom.model_engine.page_moves import PageMover
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import build_scheduler
from atom.model_engine.wire.engine_protocol import EngineReport, TimedStep
from atom.model_engine.wire.host_tier_report import HostTierReport
from atom.sizing.host_tier import GIB, HostTier
from atom.sizing.kv_budget import KvBudget, checkpoint_tokens
from atom.sizing.limits import RunLimits
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.kv_tiers import KVTierOptions
from atom.sizing.options.scheduling import SchedulerOptions

MIB = 1024**2
_NO_FOLDER = Path("model")  # which nothing opens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineForm:
    """The numbers that decide an engine's schedule. max_num_seqs of `limits`: as many as run, if
    states leave room for fewer than were asked for; max_step_seconds: the bound of a step with
    prompts and answers; depth: steps that the host is behind, 1 on a GPU and 0 on a CPU; host: the
    tier of the KV cache in the host's memory, if there is one, and file_bytes of files behind it;
    ranks: devices that share a page."""

    facts: ModelFacts
    limits: RunLimits
    budget: KvBudget
    max_step_seconds: float = SchedulerOptions().max_step_seconds
    depth: int = 1
    host: HostTier | None = None
    ranks: int = 1
    file_bytes: int = 0
    drafts: Drafts | None = None
    adapters: Adapters | None = None
    pictures: Pictures | None = None

    @property
    def page_bytes(self) -> int:
        """Return the bytes of a block, of all ranks."""
        return self.budget.block_bytes * self.ranks

    @property
    def host_bytes(self) -> int:
        """Return the size of the tier in the host's memory, of all ranks, in whole GiB or else MiB
        that hold its pages; 0 without one."""
        if self.host is None:
            return 0
        size_bytes = self.host.size_bytes
        page_bytes = size_bytes // (self.host.num_states or self.host.num_pages)
        whole = -(-size_bytes // GIB) * GIB
        return whole if whole - size_bytes < page_bytes else -(-size_bytes // MIB) * MIB

    def scheduler(
        self,
        mover: PageMover | None = None,
        store: DiskStore | None = None,
        timed: Sequence[TimedStep] = (),
    ) -> Scheduler:
        """Build the scheduler that an engine of this form has. mover: of pages to its tier; store:
        of files behind it; timed: steps with drafts as the engine times them at its start."""
        return build_scheduler(self._config(), self._report(timed), mover, store)

    def _config(self) -> Config:
        model, drafts = self._model(self.facts), self.drafts
        return Config(
            model=model,
            cache=CacheConfig(
                block_size=self.limits.block_size,
                enable_prefix_caching=self.limits.prefix_caching,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.limits.max_num_seqs,
                max_num_batched_tokens=self.limits.max_num_batched_tokens,
                max_step_seconds=self.max_step_seconds,
                num_speculative_tokens=self.limits.num_speculative_tokens,
                max_loras=0 if self.adapters is None else self.adapters.slots,
            ),
            parallel=ParallelConfig(tensor_parallel_size=self.ranks),
            tier=KVTierOptions(
                offloading_size=None if self.host is None else self.host.size_bytes / GIB
            ),
            execution=ExecutionOptions(),
            seed=0,
            speculative=None if drafts is None else drafts.config_of_engine,
            draft=None if drafts is None or drafts.facts is None else self._model(drafts.facts),
        )

    def _model(self, facts: ModelFacts) -> ModelConfig:
        return ModelConfig(
            path=_NO_FOLDER,
            served_name=facts.architecture,
            architecture=facts.architecture,
            hf_config={},
            facts=facts,
            dtype="auto",
            max_model_len=self.limits.max_model_len,
            vocab_size=facts.vocab_size,
            eos_token_ids=(),
            generation=GenerationDefaults(),
            load_dummy=True,
            tokenizer_path=_NO_FOLDER,
        )

    def _report(self, timed: Sequence[TimedStep]) -> EngineReport:
        """Write the report that an engine of this form would give. Sizes in bytes, which no
        scheduler reads, stay 0."""
        budget, limits = self.budget, self.limits
        return EngineReport(
            model=self.facts.architecture,
            architecture=self.facts.architecture,
            device="simulated" if self.depth else "cpu",  # by which drafts are costed
            dtype="auto",
            kv_cache_dtype="auto",
            backends={},
            version=atom.__version__,
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            tensor_parallel_size=self.ranks,
            data_parallel_size=1,
            block_size=budget.block_size,
            num_blocks=budget.num_blocks,
            weights_bytes=0,
            peak_bytes=0,
            kv_cache_bytes=budget.num_blocks * budget.block_bytes,
            kv_bytes_per_token=budget.layout.growing_bytes_per_token,
            kv_tokens=budget.tokens,
            total_memory_bytes=0,
            limited_by=budget.limited_by,
            concurrency=[],
            cache_masks=tuple(group.mask for group in budget.layout.groups),
            num_checkpoints=budget.num_checkpoints,
            checkpoint_tokens=checkpoint_tokens(budget.layout, budget.block_size),
            host_tier=None if self.host is None else HostTierReport.of(self.host),
            timed_steps=list(timed),
        )
