"""EngineForm: one copy of a model on its devices as the engine would run it: its blocks and limits.

The blocks come from the plan of memory (`room`), or from an engine that reported them. The
scheduler is built by the engine's own `build_scheduler`, from the same two values that a served
engine gives it. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import atom
from atom.config import (
    CacheConfig,
    Config,
    ExecutionOptions,
    GenerationDefaults,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import build_scheduler
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.sizing.kv_budget import KvBudget, checkpoint_tokens
from atom.sizing.limits import RunLimits
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.scheduling import SchedulerOptions

_NO_FOLDER = Path("model")  # which nothing opens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineForm:
    """The numbers that decide an engine's schedule. max_num_seqs of `limits`: as many as run, if
    states leave room for fewer than were asked for; max_step_seconds: the bound of a step with
    prompts and answers; depth: steps that the host is behind, 1 on a GPU and 0 on a CPU."""

    facts: ModelFacts
    limits: RunLimits
    budget: KvBudget
    max_step_seconds: float = SchedulerOptions().max_step_seconds
    depth: int = 1

    def scheduler(self) -> Scheduler:
        """Build the scheduler that an engine of this form has."""
        return build_scheduler(self._config(), self._report())

    def _config(self) -> Config:
        facts = self.facts
        model = ModelConfig(
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
            ),
            parallel=ParallelConfig(),
            execution=ExecutionOptions(),
            seed=0,
        )

    def _report(self) -> EngineReport:
        """Write the report that an engine of this form would give. Sizes in bytes, which no
        scheduler reads, stay 0."""
        budget, limits = self.budget, self.limits
        return EngineReport(
            model=self.facts.architecture,
            architecture=self.facts.architecture,
            device="simulated",
            dtype="auto",
            kv_cache_dtype="auto",
            backends={},
            version=atom.__version__,
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            tensor_parallel_size=1,
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
        )
