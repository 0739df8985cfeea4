"""Knowledge of a model, and the capacity of one replica: predicted, measured, corrected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atom.sizing import Concurrency, ModelFacts
from atom_operator.constants import Reason

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class StartupTimes:
    """Hold the times of a start; `weights_seconds` of it to load `checkpoint_bytes`."""

    total_seconds: float
    weights_seconds: float
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class BesideKvCache:
    """Hold the memory of sequences in layers whose KV cache does not grow with each token."""

    window_bytes: int = 0  # of a sequence of the full length, in layers with a sliding window
    # Of all sequences that may run, in layers that keep a state, and of checkpoints for prefixes.
    state_bytes: int = 0
    # Of a copy of the model, that run at the same time, where states leave room for fewer than were
    # asked for; else 0.
    bounded_sequences: int = 0


@dataclass(frozen=True, slots=True)
class MemoryOfDevice:
    """Divide the memory of one device; 0 for that which is not reported."""

    total_bytes: int = 0
    reserve_bytes: int = 0  # beside weights and KV cache
    kv_cache_bytes: int = 0  # of its blocks, whatever the copies; planned only


@dataclass(frozen=True, slots=True)
class Capacity:
    """Hold one replica's capacity: predicted by the plan, or measured by the engine at its
    start."""

    weights_bytes: int
    kv_bytes_per_token: int
    num_blocks: int
    kv_tokens: int
    max_sequences: int
    max_model_len: int
    limited_by: str
    concurrency: tuple[Concurrency, ...]
    beside_kv: BesideKvCache = BesideKvCache()
    device: MemoryOfDevice = MemoryOfDevice()
    startup: StartupTimes | None = None  # measured only


@dataclass(frozen=True, slots=True)
class Evidence:
    """Hold the measurements of an engine of one kind (`key`), beside the prediction without
    them."""

    key: str
    revision: str
    predicted_reserve_bytes: int
    measured_reserve_bytes: int
    planned_total_bytes: int
    measured_total_bytes: int
    startup: StartupTimes | None = None


@dataclass(frozen=True, slots=True)
class CapacityVerdict:
    """State whether the model fits; `capacity` is set if it does. `evidence` has corrected it,
    `uncorrected` is the verdict from the model's shape alone."""

    fits: ConditionStatus
    reason: Reason
    message: str
    capacity: Capacity | None = None
    evidence: Evidence | None = None
    uncorrected: CapacityVerdict | None = None

    @property
    def may_start(self) -> bool:
        """Return whether pods are made. The engine sizes itself if the verdict is unknown: only a
        sure misfit is held back."""
        return self.fits != "False"

    @property
    def prediction(self) -> Capacity | None:
        """Return the capacity predicted from the shape alone."""
        return self.capacity if self.uncorrected is None else self.uncorrected.capacity


@dataclass(frozen=True, slots=True)
class FactsLookup:
    """Facts of the model, or why there are none."""

    facts: ModelFacts | None
    reason: Reason
    message: str
    # Whether the same spec always leads to them. Others (read from the hub, by a Job) shape the
    # plan and never the pods, which would be restarted when they come or go.
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class InspectedConfig:
    """The config.json that an inspection has read. `model` is source and revision."""

    model: str
    text: str
