"""A reader that has all events knows what device and host hold, and so does one that comes late."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atom.model_engine.blocks.block_log import BlockLog, Medium, Stored
from atom.model_engine.kv_events.cached_blocks import CachedBlocks
from atom.model_engine.kv_events.events import EventMaker
from tests.engine.unit.model_engine.kv_tiers.test_tiers_of_a_scheduler import (
    SETTINGS,
    Engine,
    some_requests,
)
from tests.support.engine_core.kv_event_index import KVEventIndex


class Reader:
    """An index for each medium, of events as they are on the wire."""

    def __init__(self) -> None:
        self.by_medium = {medium: KVEventIndex() for medium in Medium}

    def take(self, events: list[Any]) -> None:
        for event in msgspec.msgpack.decode(msgspec.msgpack.encode(events)):
            if event["type"] == "AllBlocksCleared":
                for index in self.by_medium.values():
                    index.take(event)
                continue
            tier = event["medium"] != "GPU"
            assert (event.get("locality") == "LOCAL") == (tier and event["type"] == "BlockStored")
            self.by_medium[Medium(event["medium"])].take(event)

    def hashes(self) -> dict[Medium, set[int]]:
        return {medium: set(index.contents) for medium, index in self.by_medium.items()}


@pytest.mark.parametrize(
    "name", ["at-once", "few-pages", "windows", "spoiled", "resets", "all", "files", "files-all"]
)
def test_events_tell_what_each_medium_holds(name: str) -> None:
    setting = SETTINGS[name]
    engine = Engine(setting, 5, tier=True)
    blocks, tiers, log = engine.scheduler.blocks, engine.scheduler.tiers, BlockLog()
    assert tiers is not None
    blocks.tell(log)
    maker = EventMaker(blocks.block_size, [group.mask for group in blocks.groups])
    live, book, seen = Reader(), CachedBlocks(blocks.block_size), set[int]()
    for part in range(0, 60, 6):
        engine.play(some_requests(5, setting)[part : part + 6], setting, part)
        entries = log.take()
        book.follow(entries)
        live.take(list(maker.events(entries)))
        held = {
            Medium.GPU: set(blocks.pool._by_hash),
            Medium.CPU: {page.hash for page in tiers._pages},
            Medium.STORAGE: set() if tiers._files is None else set(tiers._files._told.values()),
        }
        if tiers._files is not None:
            assert set(tiers._files._told) <= {*engine.files.table, *engine.files._gone}
        assert live.hashes() == held
        seen |= held[Medium.CPU if engine.files is None else Medium.STORAGE]
        late = Reader()
        late.take(list(EventMaker(blocks.block_size, [g.mask for g in blocks.groups]).events(
            book.entries()
        )))  # fmt: skip
        assert late.hashes() == held
    assert seen


def test_salts_and_beginnings_are_told_of_pages() -> None:
    engine = Engine(SETTINGS["at-once"], 1, tier=True)
    log = BlockLog()
    engine.scheduler.blocks.tell(log)
    engine.play(some_requests(1, SETTINGS["at-once"]), SETTINGS["at-once"], 1)
    stored = [entry for entry in log.take() if isinstance(entry, Stored)]
    on_host = [entry for entry in stored if entry.medium is Medium.CPU]
    told: dict[int, tuple[int | None, str]] = {}
    for entry in stored:
        if entry.medium is Medium.GPU:
            parent, salt = entry.parent, entry.salt
            for hash_ in entry.hashes:
                told[hash_] = parent, salt
                parent, salt = hash_, ""
    assert any(entry.salt for entry in on_host)
    for entry in on_host:
        assert (entry.parent, entry.salt) == told[entry.hashes[0]]
