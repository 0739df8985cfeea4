"""Extras of an engine: drafts, adapters, and the images of its prompts. Values only.

The plan of memory has room for them, the scheduler chooses drafts and slots of adapters as in a
served engine, and steps take the time of their layers (`extra_work`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom.model_engine.request import LoRARequest
from atom.model_engine.request_image import RequestImage
from atom.sizing.engine_support import LAYER_METHODS
from atom.sizing.kv_layout import NO_SPECULATION, Speculation
from atom.sizing.model_facts import ModelFacts
from atom.sizing.overheads import LoraRoom
from atom.sizing.vision.facts import Grid, VisionFacts
from atom.speculative_config import SpeculativeConfig

_DIGEST_BYTES = 32
_SPREAD = 2654435761  # Knuth's multiplier: neighbours' adapters have nothing to do with their place


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Speculation of an engine. method: who drafts; tokens: most drafts of a row and step;
    acceptance: the chance of a draft whose predecessors were accepted; model, config, facts: of the
    checkpoint of eagle3 or draft_model, as a manifest names it."""

    method: str
    tokens: int
    acceptance: float
    model: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    facts: ModelFacts | None = None

    @property
    def by_layers(self) -> bool:
        """Return whether layers draft, with weights and a cache of their own."""
        return self.method in LAYER_METHODS

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


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images of each prompt, no two of which are alike. count: of a prompt; width, height: of each,
    in pixels."""

    count: int
    width: int
    height: int

    def grid(self, vision: VisionFacts, max_model_len: int) -> Grid:
        """Return the patches of an image: of its own size in whole tokens, or of the largest one,
        if the encoder takes no such image."""
        merge = vision.patches.merge
        side = vision.patches.size * merge
        rows, columns = (max(1, round(each / side)) for each in (self.height, self.width))
        own = (1, rows * merge, columns * merge)
        most = vision.largest_tokens(max_model_len)
        takes = vision.takes(own) and vision.image_tokens(own) <= most
        return own if takes else vision.largest_grid(max_model_len)

    def tokens(self, vision: VisionFacts, max_model_len: int) -> int:
        """Return the tokens of a prompt's images."""
        return self.count * vision.image_tokens(self.grid(vision, max_model_len))

    def of_request(
        self, place: int, prompt_tokens: int, vision: VisionFacts, max_model_len: int
    ) -> list[RequestImage]:
        """Return the images of a request, which come before the last token of its prompt."""
        grid = self.grid(vision, max_model_len)
        tokens = vision.image_tokens(grid)
        first = prompt_tokens - 1 - self.count * tokens
        return [
            RequestImage(
                digest=(place * self.count + index).to_bytes(_DIGEST_BYTES, "little"),
                offset=first + index * tokens,
                filled=b"\1" * tokens,
                grid=grid,
                shape=(0,),  # pixels that nothing reads
                pixels=memoryview(b""),
            )
            for index in range(self.count)
        ]


def speculation_of(drafts: Drafts | None) -> Speculation:
    """Return the drafts of an engine, or none, as the plan of the KV cache counts them."""
    return NO_SPECULATION if drafts is None else drafts.speculation
