"""The smallest changes that would make a model fit, each tried with the same arithmetic. Pure.

A remedy is named only if it fits alone, with its number. One that the engine cannot run (a larger
tensor-parallel size) is information and is marked as such.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from atom.sizing import (
    MAX_TENSOR_PARALLEL,
    ONLINE,
    DoesNotFitError,
    DoesNotFitReason,
    ExpertOptions,
    ModelFacts,
    QuantizationScheme,
    expert_parallel_problem,
    kv_cache_problems,
    tensor_parallel_problems,
    unsupported,
    valid_tensor_parallel_sizes,
)
from atom.sizing.attention.kinds import CacheKind
from atom_operator.api.v1alpha1.common import memory_quantity
from atom_operator.api.v1alpha1.option_field import spec_path
from atom_operator.domain import Accelerator, EngineOptions, SpeculativeOptions
from atom_operator.integration_values import Site
from atom_operator.plan.accelerators import (
    PRODUCTS,
    partition_of_resource,
    product_of_device_id,
    shares_memory,
)

# Whether a model fits with these options on a device of this many bytes.
Fits = Callable[[EngineOptions, int, ModelFacts], bool]

_GIB = 1024**3
_MOST_UTILIZATION_PERCENT = 95  # beyond it fragmentation and other processes decide
_LEAST_BATCHED_TOKENS = 1024
_MEMORY_STEP_BYTES = 256 * 1024**2
_MOST_MEMORY_STEPS = 4096  # a terabyte; a larger lack needs another model
# The usual fp8 checkpoint: DeepSeek's, Qwen's.
_BLOCK_FP8 = QuantizationScheme(method="fp8", default=replace(ONLINE["fp8"], method="fp8"))
# The numbers of `LoraOptions` with their options, in the order of trial.
_LORA_NUMBERS = {
    "max_loras": "max_loras",
    "max_cpu_loras": "max_cpu_loras",
    "max_rank": "max_lora_rank",
}
_NOT_YET = "once the engine can do it, which this version does not"


@dataclass(frozen=True, slots=True)
class Misfit:
    """Hold a model that does not fit a device; `memory_bytes` is of one device, `site` has the
    abilities of engines."""

    error: DoesNotFitError
    facts: ModelFacts
    options: EngineOptions
    accelerator: Accelerator
    memory_bytes: int
    site: Site


def remedies(misfit: Misfit, fits: Fits) -> str:
    """Write one sentence with every single change that is enough."""
    found = [*_changes(misfit, fits)]
    if not found:
        return "no single change is enough: choose a smaller model"
    return "; or ".join(found)


def _changes(misfit: Misfit, fits: Fits) -> Iterator[str]:
    error = misfit.error
    if error.reason is DoesNotFitReason.CONTEXT:
        yield f"set {spec_path('max_model_len')} to at most {error.max_context_tokens}"
    yield from _less_room_for_steps(misfit, fits)
    yield from _fewer_drafts(misfit, fits)
    yield from _fewer_adapters(misfit, fits)
    if misfit.accelerator.type == "cpu":
        yield from _more_host_memory(misfit, fits)
        return
    yield from _more_utilization(misfit, fits)
    yield from _smaller_elements(misfit, fits)
    yield from _idle_partitions(misfit, fits)
    yield from _other_product(misfit, fits)
    yield from _more_devices(misfit, fits)
    yield from _quantised_weights(misfit, fits)


def _less_room_for_steps(misfit: Misfit, fits: Fits) -> Iterator[str]:
    options, scheduler = misfit.options, misfit.options.scheduler
    tokens = scheduler.max_num_batched_tokens // 2
    while tokens >= max(_LEAST_BATCHED_TOKENS, scheduler.max_num_seqs):
        changed = replace(options, scheduler=replace(scheduler, max_num_batched_tokens=tokens))
        if fits(changed, misfit.memory_bytes, misfit.facts):
            yield f"set {spec_path('max_num_batched_tokens')} to at most {tokens}"
            return
        tokens //= 2


def _fewer_drafts(misfit: Misfit, fits: Fits) -> Iterator[str]:
    """Suggest fewer drafts. Each has logits for every sequence; without any, the drafter's weights
    and cache are freed too."""
    options, drafts = misfit.options, misfit.options.speculative
    for tokens in range(drafts.tokens - 1, 0, -1):
        changed = replace(options, speculative=replace(drafts, tokens=tokens))
        if fits(changed, misfit.memory_bytes, misfit.facts):
            yield f"set {spec_path('num_speculative_tokens')} to at most {tokens}"
            return
    without = replace(options, speculative=SpeculativeOptions())
    if drafts.tokens and fits(without, misfit.memory_bytes, misfit.facts):
        yield "leave out spec.engine.speculative"


def _fewer_adapters(misfit: Misfit, fits: Fits) -> Iterator[str]:
    lora = misfit.options.lora
    if lora is None:
        return
    for name, option in _LORA_NUMBERS.items():
        count = getattr(lora, name) // 2
        while count:
            fewer = replace(lora, **{name: count})
            if fits(replace(misfit.options, lora=fewer), misfit.memory_bytes, misfit.facts):
                yield f"set {spec_path(option)} to at most {count}"
                return
            count //= 2
    if fits(replace(misfit.options, lora=None), misfit.memory_bytes, misfit.facts):
        yield "leave out spec.engine.lora and spec.adapters"


def _more_utilization(misfit: Misfit, fits: Fits) -> Iterator[str]:
    options, cache = misfit.options, misfit.options.cache
    first = int(cache.gpu_memory_utilization * 100) + 1

    def is_enough(percent: int) -> bool:
        changed = replace(options, cache=replace(cache, gpu_memory_utilization=percent / 100))
        return fits(changed, misfit.memory_bytes, misfit.facts)

    percent = _least(range(first, _MOST_UTILIZATION_PERCENT + 1), is_enough)
    if percent is not None:
        yield f"raise {spec_path('gpu_memory_utilization')} to at least {percent / 100:g}"


def _more_host_memory(misfit: Misfit, fits: Fits) -> Iterator[str]:
    start = misfit.memory_bytes // _MEMORY_STEP_BYTES
    steps = range(start + 1, start + 1 + _MOST_MEMORY_STEPS)
    step = _least(steps, lambda step: fits(misfit.options, step * _MEMORY_STEP_BYTES, misfit.facts))
    if step is not None:
        quantity = memory_quantity(step * _MEMORY_STEP_BYTES)
        yield f"raise spec.accelerator.memory to at least {quantity}"


def _least(values: range, is_enough: Callable[[int], bool]) -> int | None:
    """Return the first value that is enough, of which every later one is too; None if none is. By
    halves: a plan is computed for each that is tried, and an admission review waits for it."""
    at = bisect_left(values, True, key=is_enough)
    return values[at] if at < len(values) else None


def _idle_partitions(misfit: Misfit, fits: Fits) -> Iterator[str]:
    """Suggest the memory of idle neighbours, which a partition may use under NPS1, and which is not
    reserved."""
    partition = partition_of_resource(misfit.accelerator.resource_name or "")
    ids = misfit.accelerator.device_ids
    product = product_of_device_id(ids[0]) if ids else None
    if product is None or product.memory_gib is None or not shares_memory(partition):
        return
    whole = product.memory_gib * _GIB
    if misfit.memory_bytes < whole and fits(misfit.options, whole, misfit.facts):
        yield (
            "where the other partitions of the GPU stay idle, set spec.accelerator.memory to "
            f"{memory_quantity(whole)}, which {partition} lets each of them address"
        )


def _other_product(misfit: Misfit, fits: Fits) -> Iterator[str]:
    """Yield the smallest device of the catalogue that holds it, with every product of that size."""
    larger = sorted({p.memory_gib for p in PRODUCTS if p.memory_gib is not None})
    for size in larger:
        memory_bytes = size * _GIB
        if memory_bytes <= misfit.memory_bytes:
            continue
        if fits(misfit.options, memory_bytes, misfit.facts):
            names = " or ".join(p.name for p in PRODUCTS if p.memory_gib == size)
            yield f"set spec.accelerator.product to {names} ({size} GiB)"
            return


def _more_devices(misfit: Misfit, fits: Fits) -> Iterator[str]:
    options, facts = misfit.options, misfit.facts
    if options.shares_experts:
        yield from _more_sharers(misfit, fits)
        return
    experts = options.expert_parallel
    # On the nodes that there are: more of them are another network's question.
    for ranks in valid_tensor_parallel_sizes(facts, options.nodes, expert_parallel=experts):
        parallel = replace(options.parallel, tensor_parallel_size=ranks)
        changed = replace(options, parallel=parallel)
        if ranks <= options.tensor_parallel or not fits(changed, misfit.memory_bytes, facts):
            continue
        latent = any(layer.attention.cache is CacheKind.LATENT for layer in facts.layers)
        # A user should not raise it once more in the hope of a smaller cache.
        note = ": the weights are divided, each device holds the whole MLA cache" if latent else ""
        if ranks <= misfit.site.engine_tensor_parallel * options.nodes:
            yield f"set spec.parallelism.tensor to {ranks}{note}"
        else:
            yield (
                f"{ranks} such devices by spec.parallelism.tensor{note}, with engine images that "
                f"divide a model over more than {misfit.site.engine_tensor_parallel} "
                "(engine.maxTensorParallel in the operator's chart)"
            )
        return


def _more_sharers(misfit: Misfit, fits: Fits) -> Iterator[str]:
    """Suggest more ranks with separate tokens, each of which has fewer of the experts."""
    options = misfit.options
    for ranks in range(options.data_parallel + 1, MAX_TENSOR_PARALLEL * options.nodes + 1):
        asked = ExpertOptions(data_parallel=ranks, nodes=options.nodes)
        parallel = replace(options.parallel, data_parallel_size=ranks)
        changed = replace(options, parallel=parallel)
        if expert_parallel_problem(misfit.facts, asked) is None and fits(
            changed, misfit.memory_bytes, misfit.facts
        ):
            yield f"set spec.parallelism.data to {ranks}"
            return


def _smaller_elements(misfit: Misfit, fits: Fits) -> Iterator[str]:
    """Yield a cache with smaller elements, where the present ones are larger."""
    options, cache = misfit.options, misfit.options.cache
    for name in _smaller_than(cache.kv_cache_dtype):
        changed = replace(options, cache=replace(cache, kv_cache_dtype=name))
        if any(kv_cache_problems(misfit.facts, name)):
            continue
        if fits(changed, misfit.memory_bytes, misfit.facts):
            yield f"set {spec_path('kv_cache_dtype')} to {name}"
            return


def _smaller_than(dtype: str) -> tuple[Literal["bf16", "fp8"], ...]:
    if dtype == "fp8":
        return ()
    return ("bf16", "fp8") if dtype == "fp32" else ("fp8",)


def _quantised_weights(misfit: Misfit, fits: Fits) -> Iterator[str]:
    """Suggest another checkpoint of the same model, half as large."""
    if misfit.facts.quantization is not None:
        return
    quantised, options = misfit.facts.stored_as(_BLOCK_FP8), misfit.options
    if tensor_parallel_problems(
        quantised,
        options.tensor_parallel,
        options.nodes,
        expert_parallel=options.expert_parallel,
    ):
        return
    if fits(misfit.options, misfit.memory_bytes, quantised):
        able = not unsupported(quantised, misfit.site.engine_architectures)
        yield "take an fp8 checkpoint of the model" + ("" if able else f", {_NOT_YET}")
