"""Whether the model fits on the device, and how many sequences it then serves.

Pure arithmetic over atom.sizing with predicted activation and runtime memory; the numbers and the
field to change are in every message.
"""

from __future__ import annotations

from atom.sizing import (
    DoesNotFitError,
    ModelFacts,
    activation_bytes,
    concurrency_table,
    kv_bytes_per_token,
    plan_kv_cache,
    runtime_overhead_bytes,
)
from atom_operator.constants import Reason
from atom_operator.domain import (
    Accelerator,
    Capacity,
    CapacityVerdict,
    EngineOptions,
    FactsLookup,
)
from atom_operator.plan.remedies import Misfit, remedies

_KV_DTYPE_BYTES = {"bf16": 2, "fp32": 4}
# The engine computes in float32 on a CPU, whatever the checkpoint has.
_CPU_DTYPE_BYTES = 4


def judge_capacity(
    lookup: FactsLookup,
    options: EngineOptions,
    accelerator: Accelerator,
    engine_tensor_parallel: int = 1,
) -> CapacityVerdict:
    """Fits, does not fit, or unknown; never a guess. `engine_tensor_parallel`: see Misfit."""
    facts = lookup.facts
    if facts is None:
        return CapacityVerdict("Unknown", lookup.reason, lookup.message)
    if accelerator.memory_bytes is None:
        return CapacityVerdict(
            "Unknown",
            Reason.ACCELERATOR_UNKNOWN,
            "the device's memory is unknown, so nothing was planned; set "
            "spec.accelerator.product (such as MI300X) or spec.accelerator.memory",
        )
    try:
        capacity = _capacity(facts, options, accelerator.memory_bytes, accelerator.type)
    except DoesNotFitError as error:
        memory = accelerator.memory_bytes
        misfit = Misfit(error, facts, options, accelerator, memory, engine_tensor_parallel)
        message = f"{error}. To fit: {_remedies(misfit)}"
        return CapacityVerdict("False", Reason(error.reason.value), message)
    return CapacityVerdict(
        "True",
        Reason.FITS,
        f"{capacity.kv_tokens} tokens of KV cache hold {capacity.max_sequences} sequences of "
        f"{capacity.max_model_len} tokens per replica ({lookup.message})",
        capacity,
    )


def _capacity(facts: ModelFacts, options: EngineOptions, total_bytes: int, device: str) -> Capacity:
    ranks = options.tensor_parallel
    compute_bytes = _CPU_DTYPE_BYTES if device == "cpu" else facts.weight_dtype_bytes
    kv_dtype_bytes = _KV_DTYPE_BYTES.get(options.kv_cache_dtype, compute_bytes)
    max_model_len = options.max_model_len or facts.max_position_embeddings
    weights_bytes = facts.weight_bytes(compute_bytes, ranks)
    token_bytes = kv_bytes_per_token(facts, kv_dtype_bytes, ranks)
    budget = plan_kv_cache(
        total_bytes=total_bytes,
        utilization=options.gpu_memory_utilization,
        weights_bytes=weights_bytes,
        activation_bytes=activation_bytes(
            facts, options.max_num_batched_tokens, options.max_num_seqs, compute_bytes, ranks
        ),
        overhead_bytes=runtime_overhead_bytes("cpu" if device == "cpu" else "gpu", total_bytes),
        kv_bytes_per_token=token_bytes,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_model_len=max_model_len,
    )
    table = concurrency_table(
        budget.num_blocks, budget.block_size, max_model_len, options.max_num_seqs
    )
    return Capacity(
        weights_bytes=weights_bytes,
        kv_bytes_per_token=token_bytes,
        num_blocks=budget.num_blocks,
        kv_tokens=budget.tokens,
        max_sequences=table[-1].sequences,
        max_model_len=max_model_len,
        limited_by=budget.limited_by,
        concurrency=table,
    )


def _remedies(misfit: Misfit) -> str:
    def fits(options: EngineOptions, memory_bytes: int) -> bool:
        try:
            _capacity(misfit.facts, options, memory_bytes, misfit.accelerator.type)
        except DoesNotFitError:
            return False
        return True

    return remedies(misfit, fits)
