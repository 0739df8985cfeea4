"""KV events as routers read them: msgpack maps in an array, as vLLM 0.26 writes them.

A batch is `[time, events, data_parallel_rank]`; llm-d's, Dynamo's and kthena's readers take it
unchanged. Hashes are opaque to a reader, which makes its own from the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
import numpy as np

from atom.model_engine.blocks.block_log import (
    Cleared,
    Entry,
    ImageKeys,
    Medium,
    Removed,
    Stored,
)
from atom.sizing.mask_rule import MaskRule

_DIGEST_DIGITS = 32
LOCAL = "LOCAL"  # a tier that this engine alone reads


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag_field="type"):
    """Base of the events about blocks."""


class BlockStored(KVCacheEvent, tag="BlockStored"):
    """Report blocks of `block_size` tokens each that a later prompt may begin with. extra_keys:
    further inputs of each block's content; group_idx and the fields after it: only if layers of a
    model see different windows and so keep blocks apart; locality: of a tier below the device."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str | tuple[str, int]] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(KVCacheEvent, tag="BlockRemoved"):
    """Blocks that a medium no longer holds: they were evicted, or their adapter was unloaded."""

    block_hashes: list[int]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent, tag="AllBlocksCleared"):
    """The whole cache was forgotten."""


class EventBatch(msgspec.Struct, array_like=True):
    """Holds the events of a step. ts: seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


def salt_digest(salt: str) -> str:
    """Return the digest that events carry in place of a salt; a reader that knows the salt can
    compute it."""
    return sha256(salt.encode()).hexdigest()[:_DIGEST_DIGITS]


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class _Group:
    """Distinguish the blocks of one group of layers from another's."""

    index: int
    kind: str
    window: int | None


class EventMaker:
    """Turn a log's entries into events. If there are several groups, remembers the group of each
    block: an eviction knows the hash alone."""

    def __init__(self, block_size: int, masks: Sequence[MaskRule]) -> None:
        """masks: the tokens that each group of layers sees."""
        self._block_size = block_size
        self._groups = [_group(index, mask) for index, mask in enumerate(masks)]
        self._apart = len(self._groups) > 1
        self._group_of: dict[Medium, dict[int, int]] = {medium: {} for medium in Medium}

    def events(self, entries: Sequence[Entry]) -> list[Event]:
        """Convert entries to events: consecutive blocks become one event, as do consecutive
        evictions."""
        made: list[Event] = []
        for entry in _joined(entries):
            if isinstance(entry, Stored):
                made.append(self._stored(entry))
            elif isinstance(entry, Removed):
                made += self._removed(entry)
            else:
                for known in self._group_of.values():
                    known.clear()
                made.append(AllBlocksCleared())
        return made

    def _stored(self, entry: Stored) -> BlockStored:
        event = BlockStored(
            block_hashes=entry.hashes,
            parent_block_hash=entry.parent,
            token_ids=np.frombuffer(entry.packed, np.int32).tolist(),
            block_size=self._block_size,
            lora_id=None,
            medium=entry.medium,
            lora_name=entry.lora_name,
            locality=None if entry.medium is Medium.GPU else LOCAL,
        )
        # As vLLM has them: an adapter's name is a key of each block, a salt of the first one's. A
        # digest of the salt is enough to separate prompts, and no reader can use it.
        if entry.lora_name is not None or entry.salt or any(entry.images):
            event.extra_keys = list(_extra_keys(entry))
        if self._apart:
            self._group_of[entry.medium].update(dict.fromkeys(entry.hashes, entry.group))
            group = self._groups[entry.group]
            event.group_idx = group.index
            event.kv_cache_spec_kind = group.kind
            event.kv_cache_spec_sliding_window = group.window
        return event

    def _removed(self, entry: Removed) -> Iterator[BlockRemoved]:
        if not self._apart:
            yield BlockRemoved(entry.hashes, entry.medium)
            return
        by_group: dict[int, list[int]] = {}
        for each in entry.hashes:
            by_group.setdefault(self._group_of[entry.medium].pop(each), []).append(each)
        for group, hashes in by_group.items():
            yield BlockRemoved(hashes, entry.medium, group_idx=group)


def _extra_keys(entry: Stored) -> Iterator[list[str | tuple[str, int]] | None]:
    """Yield the inputs of each block besides its tokens: the adapter's name, the images in it, and
    of a sequence's first block the digest of its salt."""
    names = [] if entry.lora_name is None else [entry.lora_name]
    for index in range(len(entry.hashes)):
        images = (entry.images[index] if entry.images else None) or ()
        salts = [salt_digest(entry.salt)] if entry.salt and index == 0 else []
        yield [*names, *images, *salts] or None


def _joined(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Join neighbours that fit one event."""
    pending: Entry | None = None
    for entry in entries:
        joined = None if pending is None else _join(pending, entry)
        if joined is None and pending is not None:
            yield pending
        pending = entry if joined is None else joined
    if pending is not None:
        yield pending


def _join(first: Entry, second: Entry) -> Entry | None:
    if isinstance(first, Cleared) or isinstance(second, Cleared) or first.medium != second.medium:
        return None
    if isinstance(first, Removed) and isinstance(second, Removed):
        return Removed(first.hashes + second.hashes, first.medium)
    if isinstance(first, Stored) and isinstance(second, Stored):
        follows = second.parent == first.hashes[-1] and second.group == first.group
        if follows:
            hashes, packed = first.hashes + second.hashes, first.packed + second.packed
            images = _images(first) + _images(second) if first.images or second.images else ()
            return replace(first, hashes=hashes, packed=packed, images=images)
    return None


def _images(entry: Stored) -> tuple[ImageKeys | None, ...]:
    return entry.images or (None,) * len(entry.hashes)


def _group(index: int, mask: MaskRule) -> _Group:
    return _Group(index, mask.kv_cache_spec_kind, mask.window)
