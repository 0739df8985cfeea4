"""PredictedMemory: the device memory of a model, estimated before a weight is read.

Sums from atom.sizing of the model and of its draft model, as this rank holds them. Asked by the
model runner, which refuses a start that cannot fit, and later plans the KV cache with measured
numbers instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom.config import Config
from atom.model_engine.runner import kv_cache
from atom.sizing.kv_budget import KvBudget, running_sequences
from atom.sizing.kv_layout import KvLayout
from atom.sizing.limits import DeviceMemory
from atom.sizing.model_facts import ModelFacts
from atom.sizing.overheads import LoraRoom, activation_bytes, lora_bytes
from atom.sizing.rotary_table_bytes import position_bytes, rotary_bytes
from atom.sizing.weights import Sharding


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Predicts the bytes that a rank needs. element_bytes: of the model's dtype. expands: the
    device holds weights in the formats that it was given; else every format becomes the model's own
    dtype."""

    config: Config
    sharding: Sharding
    element_bytes: int
    expands: bool

    def weights_bytes(self) -> int:
        """Sum the bytes of weights that this rank will hold, tables of ropes and room for adapters
        too."""
        models, longest = self._facts(), self.config.model.max_model_len
        tables = sum(rotary_bytes(facts, longest) for facts, _ in models)
        sizes = [self._model_bytes(facts, with_mtp=own) for facts, own in models]
        return tables + sum(sizes) + self._lora_bytes()

    def _lora_bytes(self) -> int:
        lora = self.config.lora
        if lora is None:
            return 0
        room = LoraRoom(lora.max_loras, lora.max_rank, lora.experts)
        return lora_bytes(self.config.model.facts, room, self.element_bytes, self.sharding)

    def _model_bytes(self, facts: ModelFacts, *, with_mtp: bool) -> int:
        if self.expands:
            return facts.bytes_on_rank(self.element_bytes, self.sharding, with_mtp=with_mtp)
        plain = replace(facts, weight_dtype_bytes=self.element_bytes)
        return plain.bytes_on_rank(None, self.sharding, with_mtp=with_mtp)

    def activation_bytes(self) -> int:
        """Bound the bytes that the largest step needs in addition to weights and cache."""
        limits = kv_cache.run_limits(self.config)
        return activation_bytes(self.config.model.facts, limits, self.element_bytes, self.sharding)

    def device_memory(
        self, total: int, weights: int, activations: int, overhead: int
    ) -> DeviceMemory:
        """Describe a device of `total` bytes, with the bytes already used."""
        return DeviceMemory(
            total_bytes=total,
            utilization=self.config.cache.gpu_memory_utilization,
            weights_bytes=weights,
            activation_bytes=activations,
            overhead_bytes=overhead,
        )

    def plan_cache(self, layout: KvLayout, memory: DeviceMemory) -> KvBudget:
        """Size the KV cache in the memory that `memory` leaves; position_bytes are filled in here.
        Raises ConfigError if none is left."""
        positions = sum(position_bytes(facts) for facts, _ in self._facts())
        return kv_cache.plan_blocks(self.config, replace(memory, position_bytes=positions), layout)

    def running_sequences(self, layout: KvLayout, memory: DeviceMemory) -> int:
        """Return how many sequences may run, by predicted memory: before anything is sized."""
        return running_sequences(memory, layout, kv_cache.run_limits(self.config))

    def _facts(self) -> list[tuple[ModelFacts, bool]]:
        """Return the facts of the model and of its draft model, each with whether its own MTP
        layers draft."""
        config = self.config
        by_layers = config.speculative is not None and config.speculative.by_layers
        own = [(config.model.facts, by_layers and config.draft is None)]
        return own if config.draft is None else [*own, (config.draft.facts, False)]


def sharding_of(config: Config, ranks: int, redundant_experts: int) -> Sharding:
    """Describe the part of a model that each of `ranks` ranks of a copy holds."""
    parallel = config.parallel
    sharing = parallel.data_parallel_size if parallel.shares_experts else 1
    return Sharding(ranks, parallel.expert_parallel, sharing, redundant_experts)
