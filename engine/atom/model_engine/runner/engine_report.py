"""Builds the `EngineReport` of start-up from a runner's facts and its cache budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import atom
from atom.config import Config
from atom.model_engine.runner.element_types import name_of
from atom.model_engine.runner.kv_cache import run_limits
from atom.model_engine.wire.engine_protocol import ConcurrencyRow, EngineReport
from atom.sizing.kv_budget import KvBudget, checkpoint_tokens, concurrency_table
from atom.utils.device import Device
from atom.utils.versions import software_versions


@dataclass(frozen=True, slots=True)
class Found:
    """Hold the device, the types and the backends of a runner. backends: the chosen one of each
    operation; asked_num_seqs: as configured; weights_bytes, peak_bytes: of a rank."""

    device: Device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    backends: dict[str, str]
    asked_num_seqs: int
    weights_bytes: int
    peak_bytes: int


def engine_report(config: Config, found: Found, budget: KvBudget) -> EngineReport:
    """Write the report of a rank that has started."""
    limits = run_limits(config)
    table = concurrency_table(budget, limits)
    scheme = config.model.facts.quantization
    return EngineReport(
        model=config.model.served_name,
        architecture=config.model.architecture,
        device=found.device.name,
        dtype=name_of(found.dtype),
        kv_cache_dtype=name_of(found.kv_dtype),
        backends=found.backends,
        block_size=budget.block_size,
        num_blocks=budget.num_blocks,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        asked_num_seqs=found.asked_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        weights_bytes=found.weights_bytes,
        peak_bytes=found.peak_bytes,
        kv_cache_bytes=budget.num_blocks * budget.block_bytes,
        kv_bytes_per_token=budget.layout.growing_bytes_per_token,
        kv_tokens=budget.tokens,
        cache_masks=tuple(group.mask for group in budget.layout.groups),
        state_bytes=budget.layout.running_states_bytes(limits.max_num_seqs)
        + budget.checkpoint_bytes,
        num_checkpoints=budget.num_checkpoints,
        checkpoint_tokens=checkpoint_tokens(budget.layout, budget.block_size),
        total_memory_bytes=found.device.total_memory_bytes(),
        limited_by=budget.limited_by,
        concurrency=[ConcurrencyRow(row.context_tokens, row.sequences) for row in table],
        tensor_parallel_size=config.parallel.tensor_parallel_size,
        data_parallel_size=config.parallel.data_parallel_size,
        version=atom.__version__,
        versions=software_versions(),
        conversion="" if scheme is None else scheme.conversion,
    )
