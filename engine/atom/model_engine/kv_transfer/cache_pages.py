"""CachePages: the blocks of one engine, with the pages that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.page_access import PageAccess
from atom.model_engine.request import LoRARequest
from atom.sizing.vision.facts import VisionFacts


@dataclass(frozen=True, slots=True)
class CachePages:
    """Hold the books of the blocks, and the access to their pages. vision: of a model that reads
    images, whose digests name blocks; adapters: digests of adapters' files, by the number that
    requests select them with in this engine."""

    blocks: BlockManager
    access: PageAccess
    vision: VisionFacts | None = None
    adapters: Mapping[int, str] = field(default_factory=dict)

    def adapter_of(self, lora: LoRARequest | None) -> str | None:
        """Return the digest of an adapter's files, which the proofs of its pages cover; empty for
        the model alone, and None if no page of it is exchanged."""
        return "" if lora is None else self.adapters.get(lora.lora_int_id)

    @property
    def states(self) -> int | None:
        """Return the number of the group whose blocks are checkpoints of states; None without
        states."""
        return None if self.blocks.checkpoints is None else len(self.blocks.groups)

    @property
    def most_page_bytes(self) -> int:
        """Return the size of the largest page."""
        count = len(self.blocks.groups) + (self.states is not None)
        return max(self.access.page_bytes(group) for group in range(count))
