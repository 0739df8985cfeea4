"""Sizing: what a model needs and what a device can hold, as pure arithmetic.

The one truth about memory that the engine (with measured numbers) and the operator (with
predicted ones) share. Standard library only; no torch, no client, no clock; nothing is read or
written. Every quantity is an integer number of bytes or tokens, per device.
"""

from __future__ import annotations

from atom.sizing.errors import DoesNotFitError, DoesNotFitReason, ModelFactsError, SizingError
from atom.sizing.kv_budget import (
    Concurrency,
    KvBudget,
    concurrency_table,
    kv_bytes_per_token,
    plan_kv_cache,
)
from atom.sizing.model_facts import SUPPORTED_ARCHITECTURES, ModelFacts
from atom.sizing.overheads import activation_bytes, runtime_overhead_bytes
from atom.sizing.parallelism import tensor_parallel_problems, valid_tensor_parallel_sizes

__all__ = [
    "SUPPORTED_ARCHITECTURES",
    "Concurrency",
    "DoesNotFitError",
    "DoesNotFitReason",
    "KvBudget",
    "ModelFacts",
    "ModelFactsError",
    "SizingError",
    "activation_bytes",
    "concurrency_table",
    "kv_bytes_per_token",
    "plan_kv_cache",
    "runtime_overhead_bytes",
    "tensor_parallel_problems",
    "valid_tensor_parallel_sizes",
]
