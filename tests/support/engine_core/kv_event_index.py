"""KVEventIndex: what a router knows of an engine's cache by its events alone, as they are on the
wire.

Reads maps by the names in vLLM's contract and knows nothing of this engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class KVEventIndex:
    """Blocks by their hashes. contents: group, what sets a block apart (adapter and salt, with a
    bar between them) and all tokens up to its end; None where it followed a block that this reader
    does not know."""

    contents: dict[int, tuple[object, ...] | None] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self.contents.clear()
        elif kind == "BlockRemoved":
            for block in event["block_hashes"]:
                del self.contents[block]  # it was told of, and is told once that it is gone
        else:
            assert kind == "BlockStored"
            self._store(event)

    def _store(self, event: dict[str, Any]) -> None:
        hashes, size = event["block_hashes"], event["block_size"]
        tokens, parent = event["token_ids"], event["parent_block_hash"]
        assert len(tokens) == size * len(hashes)
        keys = event.get("extra_keys") or [None] * len(hashes)
        known: tuple[object, ...] | None
        if parent is None:
            apart = "|".join(keys[0] or ())
            known = (event.get("group_idx", 0), apart)
        else:
            known = self.contents.get(parent)
        for at, block in enumerate(hashes):
            known = known and (*known, *tokens[at * size : (at + 1) * size])
            assert block not in self.contents, "told twice of one block"
            self.contents[block] = known
