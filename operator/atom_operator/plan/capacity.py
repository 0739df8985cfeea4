"""Whether the model fits on the device, and how many sequences it then serves.

Pure arithmetic over atom.sizing with predicted activation and runtime memory; the numbers and the
field to change are in every message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from atom.sizing import (
    KV_ELEMENTS,
    DeviceMemory,
    DoesNotFitError,
    KvElement,
    KvLayout,
    LoraRoom,
    ModelFacts,
    RunLimits,
    Sharding,
    Speculation,
    WeightPart,
    activation_bytes,
    aiter_expert_unit,
    aiter_position_bytes,
    communication_bytes,
    concurrency_table,
    image_bytes,
    kv_layout,
    lora_bytes,
    plan_kv_cache,
    position_bytes,
    rotary_bytes,
    running_sequences,
    runtime_overhead_bytes,
)
from atom.sizing.engine_support import LAYER_METHODS
from atom.sizing.host_tier import HostTier, host_tier
from atom_operator.constants import Reason
from atom_operator.domain import (
    Accelerator,
    Capacity,
    CapacityVerdict,
    EngineOptions,
    Evidence,
    FactsLookup,
)
from atom_operator.domain.replica_capacity import BesideKvCache, MemoryOfDevice
from atom_operator.integration_values import Site
from atom_operator.plan.accelerators import multiplies_fp4
from atom_operator.plan.expert_heap import expert_heap_bytes
from atom_operator.plan.learning import reserve_factor, total_factor
from atom_operator.plan.loaded_form import as_loaded
from atom_operator.plan.remedies import Misfit, remedies

# The engine computes in float32 on a CPU, whatever the checkpoint has.
_CPU_DTYPE_BYTES = 4
_ONE_DEVICE = Site()


@dataclass(frozen=True, slots=True)
class _Correction:
    """Correct the predictions from the shape alone by factors."""

    reserve: float = 1.0
    total: float = 1.0


@dataclass(frozen=True, slots=True)
class _Case:
    """Hold one case to judge: a model on a device whose memory is known."""

    facts: ModelFacts
    options: EngineOptions
    accelerator: Accelerator
    site: Site


def judge_capacity(
    lookup: FactsLookup,
    options: EngineOptions,
    accelerator: Accelerator,
    site: Site = _ONE_DEVICE,
    evidence: Evidence | None = None,
) -> CapacityVerdict:
    """Judge whether the model fits, does not fit, or cannot be judged; never a guess.

    `site`: the abilities of its engines decide the possible remedies; `evidence`: of an engine of
    the same kind.
    """
    if lookup.facts is None:
        return CapacityVerdict("Unknown", lookup.reason, lookup.message)
    facts = as_loaded(lookup.facts, options.model)
    if accelerator.memory_bytes is None:
        return CapacityVerdict(
            "Unknown",
            Reason.ACCELERATOR_UNKNOWN,
            "the device's memory is unknown, so nothing was planned; set "
            "spec.accelerator.product (such as MI300X) or spec.accelerator.memory",
        )
    if options.speculative.model is not None and options.speculative.facts is None:
        return CapacityVerdict(
            "Unknown",
            Reason.MODEL_NOT_SIZED,
            f"the shape of the draft model {options.speculative.model} is unknown, so nothing was "
            "planned; give its config.json in spec.engine.speculative.draftConfig",
        )
    case = _Case(facts, options, accelerator, site)
    uncorrected = _judge(case, _Correction(), lookup.message)
    if evidence is None:
        return uncorrected
    correction = _Correction(reserve_factor(evidence), total_factor(evidence))
    source = f"{lookup.message}, corrected by what revision {evidence.revision} measured"
    corrected = _judge(case, correction, source)
    return replace(corrected, evidence=evidence, uncorrected=uncorrected)


def _judge(case: _Case, correction: _Correction, source: str) -> CapacityVerdict:
    try:
        capacity = _capacity(case.facts, case.options, case.accelerator, correction)
    except DoesNotFitError as error:
        misfit = Misfit(
            error,
            case.facts,
            case.options,
            case.accelerator,
            case.accelerator.memory_bytes or 0,
            case.site,
        )
        message = f"{error}. To fit: {_remedies(misfit, correction)}"
        return CapacityVerdict("False", Reason(error.reason.value), message)
    return CapacityVerdict(
        "True",
        Reason.FITS,
        f"{capacity.kv_tokens:,} tokens of KV cache hold {capacity.max_sequences:,} sequences of "
        f"{capacity.max_model_len:,} tokens per replica ({source})",
        capacity,
    )


def cache_layout(facts: ModelFacts, options: EngineOptions, accelerator: Accelerator) -> KvLayout:
    """Return the KV cache of one device."""
    element = kv_element(facts, options, accelerator)
    ranks, drafts = options.tensor_parallel, speculation(options)
    return kv_layout(facts, element, ranks, drafts, options.cache.block_size)


def kv_element(facts: ModelFacts, options: EngineOptions, accelerator: Accelerator) -> KvElement:
    """Choose the cache's element; auto is the type that the model computes in."""
    compute = KvElement(_compute_bytes(as_loaded(facts, options.model), accelerator))
    return KV_ELEMENTS.get(options.cache.kv_cache_dtype, compute)


def speculation(options: EngineOptions) -> Speculation:
    """Describe the source of drafts: the model's own draft layers, a draft model, the text alone,
    or none."""
    drafts = options.speculative
    return Speculation(drafts.tokens, drafts.facts, by_layers=drafts.method in LAYER_METHODS)


def loads_own_drafts(options: EngineOptions) -> bool:
    """Return whether the checkpoint's draft layers are part of the weights in memory."""
    return options.speculative.method == "mtp"


def _compute_bytes(facts: ModelFacts, accelerator: Accelerator) -> int:
    return _CPU_DTYPE_BYTES if accelerator.type == "cpu" else facts.weight_dtype_bytes


def stored_bytes(accelerator: Accelerator) -> int | None:
    """Return the element size of the weights in memory; None if they stay as in the checkpoint."""
    return _CPU_DTYPE_BYTES if accelerator.type == "cpu" else None


def longest(facts: ModelFacts, options: EngineOptions) -> int:
    """Return the number of tokens of the longest sequence that is served."""
    return options.model.max_model_len or facts.max_position_embeddings


def held_parts(
    facts: ModelFacts, options: EngineOptions, accelerator: Accelerator
) -> tuple[WeightPart, ...]:
    """Return a device's parts of the model and of its drafter, with the rotary tables by
    position."""
    stored, positions = stored_bytes(accelerator), longest(facts, options)
    facts = as_loaded(facts, options.model)
    sharding = held_as(facts, options, accelerator)
    served = as_served(facts, options)
    parts = served.weight_parts(stored, sharding, loads_own_drafts(options))
    tables = rotary_bytes(facts, positions)
    drafter = options.speculative.facts
    if drafter is not None:
        size = drafter.weight_bytes(stored, options.tensor_parallel)
        parts = (*parts, WeightPart("draft model", size, sharded=True))
        tables += rotary_bytes(drafter, positions)
    rooms = _adapter_rooms(facts, options, accelerator)
    outputs = image_bytes(served, _limits(facts, options), _compute_bytes(facts, accelerator))
    images = (WeightPart("outputs of images", outputs, sharded=False),) if outputs else ()
    return (*parts, WeightPart("rotary tables", tables, sharded=False), *images, *rooms)


def as_served(facts: ModelFacts, options: EngineOptions) -> ModelFacts:
    """Return the facts of the model that engines load: in their form, and without an image encoder
    that is not used."""
    facts = as_loaded(facts, options.model)
    return facts if options.reads_images else facts.without_images


def _limits(facts: ModelFacts, options: EngineOptions) -> RunLimits:
    return RunLimits(
        block_size=options.cache.block_size,
        max_num_seqs=options.scheduler.max_num_seqs,
        max_model_len=longest(facts, options),
        max_num_batched_tokens=options.scheduler.max_num_batched_tokens,
        num_speculative_tokens=options.speculative.tokens,
        prefix_caching=options.cache.enable_prefix_caching,
    )


def host_memory_bytes(lookup: FactsLookup, options: EngineOptions, accelerator: Accelerator) -> int:
    """Return the bytes of a GPU pod's host memory that adapters, sleeping weights, a tier of the
    KV cache and images of requests take: a part of its memory request, so only facts that the spec
    itself settles count."""
    facts = lookup.facts if lookup.pinned else None
    if accelerator.type == "cpu":
        return 0
    of_pod = options.serving.host_tier_bytes + _request_image_bytes(facts, options)
    if facts is None:
        return of_pod
    facts = as_loaded(facts, options.model)
    each = 0  # of its ranks
    if options.lora is not None:
        room = LoraRoom(options.lora.max_cpu_loras, options.lora.max_rank, options.lora.experts)
        each += lora_bytes(facts, room, _compute_bytes(facts, accelerator), options.sharding)
    if options.serving.may_sleep:
        parts = held_parts(facts, replace(options, lora=None), accelerator)
        each += sum(part.size_bytes for part in parts)
    return each * options.devices_per_pod + of_pod


def _request_image_bytes(facts: ModelFacts | None, options: EngineOptions) -> int:
    """Return the bytes of the decoded images of open requests in the server and the engine of a
    pod. facts: None if the spec does not settle them; then those that the spec states count."""
    reads = options.images.image_memory_mib is not None
    if facts is not None:
        reads = as_served(facts, options).vision is not None
    return 2 * options.images.memory_bytes(None) if reads and options.reads_images else 0


def tier_of(facts: ModelFacts, options: EngineOptions, accelerator: Accelerator) -> HostTier | None:
    """Return the tier of the KV cache of one copy of the model in a pod; None without one."""
    if not options.serving.host_tier_bytes:
        return None
    size_bytes = options.serving.host_tier_bytes // options.copies_per_pod
    return _tier(facts, options, accelerator, size_bytes)


def files_of(
    facts: ModelFacts, options: EngineOptions, accelerator: Accelerator
) -> HostTier | None:
    """Return the tier of the KV cache's files behind the host's memory; None without them. All
    copies share them."""
    tier = options.serving.disk_tier
    return None if tier is None else _tier(facts, options, accelerator, tier.size_bytes)


def _tier(
    facts: ModelFacts, options: EngineOptions, accelerator: Accelerator, size_bytes: int
) -> HostTier:
    layout, limits = cache_layout(facts, options, accelerator), _limits(facts, options)
    return host_tier(size_bytes, layout, limits, options.tensor_parallel)


def _adapter_rooms(
    facts: ModelFacts, options: EngineOptions, accelerator: Accelerator
) -> Iterator[WeightPart]:
    """Yield the room for adapters on the device, and on a CPU that of the host's, which is the
    same memory."""
    lora = options.lora
    if lora is None:
        return
    element = _compute_bytes(facts, accelerator)
    rooms = {"room for adapters": lora.max_loras}
    if accelerator.type == "cpu":
        rooms["adapters in the host's memory"] = lora.max_cpu_loras
    for name, count in rooms.items():
        room = LoraRoom(count, lora.max_rank, lora.experts)
        size = lora_bytes(facts, room, element, options.sharding)
        yield WeightPart(name, size, sharded=True)


def held_as(facts: ModelFacts, options: EngineOptions, accelerator: Accelerator) -> Sharding:
    """Return how the engine's kernels hold the model: AMD's AITER, which the engine takes first,
    pads some experts on cards that multiply MXFP4."""
    whole = options.sharding
    if not multiplies_fp4(accelerator) or whole.expert_parallel or _without_aiter(options):
        return whole
    return replace(whole, expert_unit=aiter_expert_unit(facts))


def _without_aiter(options: EngineOptions) -> bool:
    """Return whether the spec's own arguments leave experts to another backend."""
    execution = options.execution
    named = [execution.op_backends.get(name) for name in ("experts", "prepare_experts")]
    chosen = {each for each in named if each is not None} or {execution.backend}
    return not chosen <= {"auto", "aiter"}


def _capacity(
    facts: ModelFacts, options: EngineOptions, accelerator: Accelerator, correction: _Correction
) -> Capacity:
    device = accelerator.type
    memory_bytes = accelerator.memory_bytes or 0
    if device == "cpu":
        memory_bytes //= max(1, options.devices_per_pod)  # ranks share their pod's
    total_bytes = int(memory_bytes * correction.total)
    limits = _limits(facts, options)
    weights_bytes = sum(part.size_bytes for part in held_parts(facts, options, accelerator))
    served, compute = as_served(facts, options), _compute_bytes(facts, accelerator)
    activations = max(
        activation_bytes(each, limits, compute, options.sharding)
        for each in (served, options.speculative.facts or served)
    )
    copied = aiter_position_bytes(facts, limits.max_model_len)
    if device == "cpu" or _without_aiter(options):
        copied = 0
    activations += copied * limits.max_model_len
    overhead = runtime_overhead_bytes("cpu" if device == "cpu" else "gpu", total_bytes)
    if device == "cpu":
        overhead += options.serving.host_tier_bytes // max(1, options.devices_per_pod)
    else:
        row_bytes = facts.hidden_size * _compute_bytes(facts, accelerator)
        overhead += communication_bytes(row_bytes, options.sharding, options.nodes)
        overhead += expert_heap_bytes(options)
        tier = tier_of(facts, options, accelerator)
        overhead += 0 if tier is None else tier.staging_bytes
    reserve_bytes = int((activations + overhead) * correction.reserve)
    layout = cache_layout(facts, options, accelerator)
    memory = DeviceMemory(
        total_bytes=total_bytes,
        utilization=options.cache.gpu_memory_utilization,
        weights_bytes=weights_bytes,
        activation_bytes=int(activations * correction.reserve),
        overhead_bytes=reserve_bytes - int(activations * correction.reserve),
        position_bytes=position_bytes(facts) + int(copied * correction.reserve),
    )
    running = running_sequences(memory, layout, limits)
    if running < limits.max_num_seqs:  # as the engine continues: with the needs of fewer rows
        scheduler = replace(options.scheduler, max_num_seqs=running)
        smaller = replace(options, scheduler=scheduler)
        fewer = _capacity(facts, smaller, accelerator, correction)
        return replace(fewer, beside_kv=replace(fewer.beside_kv, bounded_sequences=running))
    budget = plan_kv_cache(memory, layout, limits)
    one = concurrency_table(budget, limits)
    # A request stays on one copy of the model: each holds as much, whatever the others do.
    copies = options.data_parallel
    table = tuple(replace(row, sequences=row.sequences * copies) for row in one)
    window_blocks = layout.window_blocks(limits.max_model_len, limits.block_size)
    return Capacity(
        weights_bytes=weights_bytes,
        kv_bytes_per_token=layout.growing_bytes_per_token,
        num_blocks=budget.num_blocks * copies,
        kv_tokens=budget.tokens * copies,
        max_sequences=table[-1].sequences,
        max_model_len=limits.max_model_len,
        limited_by=budget.limited_by,
        concurrency=table,
        beside_kv=BesideKvCache(
            window_bytes=window_blocks * budget.block_bytes,
            state_bytes=layout.running_states_bytes(limits.max_num_seqs) + budget.checkpoint_bytes,
        ),
        device=MemoryOfDevice(total_bytes, reserve_bytes, budget.num_blocks * budget.block_bytes),
    )


def _remedies(misfit: Misfit, correction: _Correction) -> str:
    def fits(options: EngineOptions, memory_bytes: int, facts: ModelFacts) -> bool:
        try:
            device = replace(misfit.accelerator, memory_bytes=memory_bytes)
            _capacity(facts, options, device, correction)
        except DoesNotFitError:
            return False
        return True

    return remedies(misfit, fits)
