"""Inputs of a memory plan: a device, its memory that is already used, and the limits of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A device's bytes, the share of them that may be used, and their uses, which the engine
    measures and the operator predicts (atom.sizing.overheads). position_bytes: the share of these
    bytes that each position of the longest sequence takes; state_bytes: of the states of all
    sequences that may run, set by the planner of the cache."""

    total_bytes: int
    utilization: float  # between 0 and 1
    weights_bytes: int
    activation_bytes: int
    overhead_bytes: int
    position_bytes: int = 0
    state_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        return int(self.total_bytes * self.utilization)

    @property
    def used_bytes(self) -> int:
        """Return the bytes that weights, activations, overheads and states take."""
        return self.weights_bytes + self.activation_bytes + self.overhead_bytes + self.state_bytes

    @property
    def available_bytes(self) -> int:
        """Return the bytes left for the KV cache; negative if the other uses exceed the usable
        memory."""
        return self.usable_bytes - self.used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """The limits of sequences' length, their number, and a step's tokens. num_speculative_tokens:
    drafts of each sequence in a step, besides its token; prefix_caching: whether prompts may reuse
    cached prefixes."""

    block_size: int  # tokens per block
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    prefix_caching: bool = False
