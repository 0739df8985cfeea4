"""PredictedMemory: the device memory of a model, estimated before a weight is read.

Sums from atom.sizing of the model and of its draft model, as this rank holds them. Asked by the
model runner, which refuses a start that cannot fit, and later plans the KV cache with measured
numbers instead.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from atom.collectives.group import Group
from atom.config import Config
from atom.model_engine.runner import kv_cache
from atom.sizing.kv_budget import KvBudget, running_sequences
from atom.sizing.kv_layout import KvLayout
from atom.sizing.limits import DeviceMemory
from atom.sizing.model_facts import ModelFacts
from atom.sizing.overheads import (
    LoraRoom,
    activation_bytes,
    image_bytes,
    lora_bytes,
    runtime_overhead_bytes,
)
from atom.sizing.rotary_table_bytes import position_bytes, rotary_bytes
from atom.sizing.weights import Sharding
from atom.utils.device import Device

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Predicts the bytes that a rank needs. element_bytes: of the model's dtype. expands: the
    device holds weights in the formats that it was given; else every format becomes the model's own
    dtype."""

    config: Config
    device: Device
    sharding: Sharding
    element_bytes: int
    expands: bool

    def weights_bytes(self) -> int:
        """Sum the bytes of weights that this rank will hold, tables of ropes and room for adapters
        too."""
        models, longest = self._facts(), self.config.model.max_model_len
        tables = sum(rotary_bytes(facts, longest) for facts, _ in models)
        sizes = [self._model_bytes(facts, with_mtp=own) for facts, own in models]
        return tables + sum(sizes) + self._lora_bytes() + self._image_bytes()

    def _image_bytes(self) -> int:
        """Return the bytes of images' outputs, which are a buffer of the model."""
        limits = kv_cache.run_limits(self.config)
        return image_bytes(self.config.model.facts, limits, self.element_bytes)

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
        return max(
            activation_bytes(facts, limits, self.element_bytes, self.sharding)
            for facts, _ in self._facts()
        )

    def _device_memory(self, weights: int, activations: int, overhead: int) -> DeviceMemory:
        """Describe the device, with the bytes already used."""
        return DeviceMemory(
            total_bytes=self.device.total_memory_bytes(),
            utilization=self.config.cache.gpu_memory_utilization,
            weights_bytes=weights,
            activation_bytes=activations,
            overhead_bytes=overhead,
        )

    def plan_cache(
        self, layout: KvLayout, weights: int, activations: int, overhead: int
    ) -> KvBudget:
        """Size the KV cache in the memory that these bytes leave. Raises ConfigError if none is
        left."""
        memory = self._device_memory(weights, activations, overhead)
        positions = sum(position_bytes(facts) for facts, _ in self._facts())
        return kv_cache.plan_blocks(self.config, replace(memory, position_bytes=positions), layout)

    def running_sequences(self, layout: KvLayout, group: Group) -> int:
        """Return how many sequences may run and keep their states, by predicted memory: before
        anything is sized, and every rank of the group the same number."""
        overhead = runtime_overhead_bytes(
            "gpu" if self.device.is_gpu else "cpu", self.device.total_memory_bytes()
        )
        memory = self._device_memory(self.weights_bytes(), self.activation_bytes(), overhead)
        fitting = running_sequences(memory, layout, kv_cache.run_limits(self.config))
        count = kv_cache.least(group, self.device.torch_device, fitting)
        if count != (asked := self.config.scheduler.max_num_seqs):
            logger.warning(
                "%d sequences run at the same time and not %d: their states take half of the "
                "memory that is left for them, at most",
                count,
                asked,
            )
        return count

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
