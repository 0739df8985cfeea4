"""Extras of an engine: drafts, and adapters. Values only.

The plan of memory has room for them, the scheduler chooses drafts and slots of adapters as in a
served engine, and steps take the time of their layers (`extra_work`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom.model_engine.request import LoRARequest
from atom.sizing.kv_layout import NO_SPECULATION, Speculation
from atom.sizing.model_facts import ModelFacts
from atom.sizing.overheads import LoraRoom
from atom.speculative_config import SpeculativeConfig

_SPREAD = 2654435761  # Knuth's multiplier: neighbours' adapters have nothing to do with their place


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Speculation of an engine. method: ngram, mtp or eagle3; tokens: most drafts of a row and
    step; acceptance: the chance of a draft whose predecessors were accepted; model, config, facts:
    of the draft model of eagle3, as a manifest names it."""

    method: str
    tokens: int
    acceptance: float
    model: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    facts: ModelFacts | None = None

    @property
    def by_layers(self) -> bool:
        """Return whether layers draft, with weights and a cache of their own."""
        return self.method != "ngram"

    @property
    def speculation(self) -> Speculation:
        """Return the drafts as the plan of the KV cache counts them."""
        return Speculation(self.tokens, self.facts, by_layers=self.by_layers)

    @property
    def config_of_engine(self) -> SpeculativeConfig:
        """Return the options that the engine is served with."""
        return SpeculativeConfig(method=self.method, num_tokens=self.tokens, draft_model=self.model)

    @property
    def tokens_a_step(self) -> float:
        """Return the tokens that a row with the most drafts gets of a step, on average."""
        return sum(self.acceptance**count for count in range(self.tokens + 1))

    @property
    def label(self) -> str:
        return f"up to {self.tokens} {self.method} drafts ({self.acceptance:.0%} accepted)"


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters of a model, which requests name equally often. count: that are served; rank:
    the highest; slots: adapters on the device, and so in a step."""

    count: int
    rank: int
    slots: int

    @property
    def on_host(self) -> int:
        """Return the adapters in the host's memory: all of them, so that none is read again."""
        return max(self.count, self.slots)

    def room(self, slots: int) -> LoraRoom:
        """Return the adapters in the form in which the plan of memory counts them."""
        return LoraRoom(slots, self.rank)

    def of_request(self, place: int) -> LoRARequest:
        """Return the adapter of a request, by its place in the load."""
        number = (place * _SPREAD % 2**32 >> 8) % self.count + 1
        return LoRARequest(f"adapter {number}", number)

    @property
    def label(self) -> str:
        return f"{self.count} adapters of rank {self.rank} ({self.slots} on the device)"


def speculation_of(drafts: Drafts | None) -> Speculation:
    """Return the drafts of an engine, or none, as the plan of the KV cache counts them."""
    return NO_SPECULATION if drafts is None else drafts.speculation
