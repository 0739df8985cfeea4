"""CachePages: the blocks of one engine, with the pages that they hold."""

from __future__ import annotations

from dataclasses import dataclass

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.page_access import PageAccess


@dataclass(frozen=True, slots=True)
class CachePages:
    """Hold the books of the blocks, and the access to their pages."""

    blocks: BlockManager
    access: PageAccess
