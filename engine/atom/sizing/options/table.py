"""Every option of the engine, by the groups of the help page and in its order."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.options.cache import CacheOptions, KVEventsFlags, KVTransferFlags
from atom.sizing.options.drafting import SpeculationFlags
from atom.sizing.options.execution import ExecutionOptions, SleepOptions
from atom.sizing.options.images import ImageOptions
from atom.sizing.options.kv_tiers import KVTierOptions
from atom.sizing.options.lora import LoraFlags
from atom.sizing.options.model import CheckpointOptions, ModelOptions
from atom.sizing.options.option import Option, options_of
from atom.sizing.options.parallelism import (
    EPLBFlags,
    HealthOptions,
    NodePlace,
    ParallelOptions,
)
from atom.sizing.options.scheduling import SchedulerOptions


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the help page, with the parts whose flags it lists."""

    title: str
    parts: tuple[type, ...]

    @property
    def options(self) -> tuple[Option, ...]:
        """Return the options of the group, in the order of the help page."""
        return tuple(each for part in self.parts for each in options_of(part))


GROUPS = (
    Group("model", (CheckpointOptions, ModelOptions)),
    Group(
        "scheduling and KV cache",
        (SchedulerOptions, CacheOptions, KVTierOptions, KVTransferFlags, KVEventsFlags),
    ),
    Group("speculation", (SpeculationFlags,)),
    Group("LoRA adapters", (LoraFlags,)),
    Group("images", (ImageOptions,)),
    Group("device", (SleepOptions, ExecutionOptions)),
    Group("parallelism", (ParallelOptions, EPLBFlags, NodePlace, HealthOptions)),
)
OPTIONS = tuple(each for group in GROUPS for each in group.options)
OPTION_OF = {each.name: each for each in OPTIONS}
