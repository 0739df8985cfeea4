"""Room: the KV cache that a model has on a card, by the arithmetic of the memory plan. Pure.

The sums are those of `kubectl atom plan` with the same options (a test compares): weights, rotary
tables, activations, runtime, communication, and then blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom.advisor.engine_form import EngineForm
from atom.advisor.extras import Adapters, Drafts, speculation_of
from atom.sizing.cards import Card, Precision, Vendor
from atom.sizing.errors import DoesNotFitError, DoesNotFitReason
from atom.sizing.host_tier import HostTier, host_tier
from atom.sizing.kernel_padding import aiter_expert_unit, aiter_position_bytes
from atom.sizing.kv_budget import plan_kv_cache, running_sequences
from atom.sizing.kv_layout import KvElement, KvLayout, kv_layout
from atom.sizing.limits import DeviceMemory, RunLimits
from atom.sizing.model_facts import ModelFacts
from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.scheduling import SchedulerOptions
from atom.sizing.overheads import (
    activation_bytes,
    communication_bytes,
    image_bytes,
    lora_bytes,
    runtime_overhead_bytes,
)
from atom.sizing.rotary_table_bytes import position_bytes, rotary_bytes
from atom.sizing.weights import Sharding

_CPU_BYTES = 4  # of an element: a CPU computes in float32
_LENGTH_STEP = 1024


@dataclass(frozen=True, slots=True)
class Division:
    """A model in the form that a card holds, with its drafts and adapters. host_bytes: of a tier in
    the host's memory, of all ranks; element_bytes: of every weight, None for the formats of the
    checkpoint."""

    facts: ModelFacts
    card: Card
    ranks: int
    drafts: Drafts | None = None
    adapters: Adapters | None = None
    host_bytes: int = 0

    @property
    def on_cpu(self) -> bool:
        return self.card.vendor is Vendor.CPU

    @property
    def element_bytes(self) -> int | None:
        return _CPU_BYTES if self.on_cpu else None

    @property
    def compute_bytes(self) -> int:
        return _CPU_BYTES if self.on_cpu else self.facts.weight_dtype_bytes

    @property
    def kv(self) -> KvElement:
        """Return the element of the cache, by default that of the computation."""
        return KvElement(self.compute_bytes)

    @property
    def sharding(self) -> Sharding:
        """Return the division; AITER pads the experts of cards that multiply fp4."""
        whole = Sharding(self.ranks)
        if self.card.vendor is not Vendor.AMD or Precision.FP4 not in self.card.flops:
            return whole
        return replace(whole, expert_unit=aiter_expert_unit(self.facts))


def plan_form(division: Division, max_num_seqs: int, longest: int) -> EngineForm:
    """Plan an engine with the default options, and with the model's whole context if that fits,
    else with as much as requests of `longest` tokens need. Raises DoesNotFitError."""
    facts = division.facts
    if longest > facts.longest_context:
        raise DoesNotFitError(
            f"the longest request of the load has {longest:,} tokens, and the model's context is "
            f"{facts.longest_context:,}; use a model with a longer context, or shorter requests",
            reason=DoesNotFitReason.CONTEXT,
            needed_bytes=0,
            available_bytes=0,
        )
    steps = -(-longest // _LENGTH_STEP)
    needed = min(steps * _LENGTH_STEP, facts.longest_context)
    whole = max(facts.max_position_embeddings, needed)
    try:
        return _planned(division, max_num_seqs, whole)
    except DoesNotFitError as error:
        if error.reason is not DoesNotFitReason.CONTEXT or needed == whole:
            raise
    return _planned(division, max_num_seqs, needed)


def tier_of(form: EngineForm, size_bytes: int) -> HostTier | None:
    """Return the tier of an engine in so many bytes of its host's memory; None if it has no
    page."""
    layout = form.budget.layout
    found = host_tier(size_bytes, layout, form.limits, form.ranks)
    return found if found.num_pages else None


def _planned(division: Division, max_num_seqs: int, max_model_len: int) -> EngineForm:
    facts, cache, drafts = division.facts, CacheOptions(), division.drafts
    limits = RunLimits(
        block_size=cache.block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_num_batched_tokens=max(max_num_seqs, SchedulerOptions().max_num_batched_tokens),
        num_speculative_tokens=0 if drafts is None else drafts.tokens,
        prefix_caching=cache.enable_prefix_caching,
    )
    speculation = speculation_of(drafts)
    layout = kv_layout(facts, division.kv, division.ranks, speculation, limits.block_size)
    memory = _memory(division, limits, layout, cache.gpu_memory_utilization)
    running = running_sequences(memory, layout, limits)
    if running < max_num_seqs:  # as the engine continues: with the needs of fewer rows
        return _planned(division, running, max_model_len)
    budget = plan_kv_cache(memory, layout, limits)
    form = EngineForm(
        facts=facts,
        limits=limits,
        budget=budget,
        depth=0 if division.on_cpu else 1,
        ranks=division.ranks,
        drafts=drafts,
        adapters=division.adapters,
    )
    if not division.host_bytes:
        return form
    return replace(form, host=tier_of(form, division.host_bytes))


def _memory(
    division: Division, limits: RunLimits, layout: KvLayout, utilization: float
) -> DeviceMemory:
    facts, card = division.facts, division.card
    weights = _held_bytes(division, limits)
    whole = Sharding(division.ranks)
    drafter = None if division.drafts is None else division.drafts.facts
    activations = max(
        activation_bytes(each, limits, division.compute_bytes, whole)
        for each in (facts, drafter or facts)
    )
    copied = aiter_position_bytes(facts, limits.max_model_len)
    if division.on_cpu:  # the operator plans every GPU as AMD's
        copied = 0
    activations += copied * limits.max_model_len
    overhead = runtime_overhead_bytes("cpu" if division.on_cpu else "gpu", card.memory_bytes)
    if division.on_cpu:
        overhead += division.host_bytes // division.ranks
    else:
        overhead += communication_bytes(facts.hidden_size * division.compute_bytes, whole)
        if division.host_bytes:
            overhead += host_tier(division.host_bytes, layout, limits, division.ranks).staging_bytes
    return DeviceMemory(
        total_bytes=card.memory_bytes,
        utilization=utilization,
        weights_bytes=weights,
        activation_bytes=activations,
        overhead_bytes=overhead,
        position_bytes=position_bytes(facts) + copied,
    )


def _held_bytes(division: Division, limits: RunLimits) -> int:
    """Sum the bytes of a rank that hold weights: of the model and its drafter, rotary tables, room
    for adapters and for the outputs of images."""
    facts, drafts, ranks = division.facts, division.drafts, division.ranks
    own = drafts is not None and drafts.method == "mtp"
    held = facts.bytes_on_rank(division.element_bytes, division.sharding, with_mtp=own)
    held += rotary_bytes(facts, limits.max_model_len)
    held += image_bytes(facts, limits, division.compute_bytes)
    if drafts is not None and drafts.facts is not None:
        held += drafts.facts.weight_bytes(division.element_bytes, ranks)
        held += rotary_bytes(drafts.facts, limits.max_model_len)
    adapters = division.adapters
    if adapters is not None:
        # On a CPU the host's adapters are in the same memory.
        slots = adapters.slots + (adapters.on_host if division.on_cpu else 0)
        held += lora_bytes(facts, adapters.room(slots), division.compute_bytes, Sharding(ranks))
    return held
