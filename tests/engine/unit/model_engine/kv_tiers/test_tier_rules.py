"""The rules of the host's tier, one by one: pages are read, written, dropped and forgotten."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest

from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.host_pages import HostPages, Page
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.model_engine.kv_disk.disk_moves import DiskStore
from atom.model_engine.page_moves import Move, MoveTotals
from atom.model_engine.request import LoRARequest
from atom.model_engine.schedule import read_speed
from atom.model_engine.schedule.tiers.kv_tiers import KVTiers, TierSetup
from atom.model_engine.sequence import Sequence
from tests.support.engine_core.builders_engine import make_request

SIZE, BLOCKS = 4, 8
LORA = LoRARequest("adapter", 1)


class Mover:
    """Completes calls when it is told to. seconds: of reading a page, each of one byte."""

    def __init__(self, *, held: bool = False, seconds: float = 0.0) -> None:
        self.held, self.seconds = held, seconds
        self.calls: list[tuple[list[Move], list[Move]]] = []
        self.rows: defaultdict[int, list[int]] = defaultdict(list)
        self.done = self.loaded = 0
        self.load_seconds = 0.0

    def move_pages(self, number: int, saves: list[Move], loads: list[Move]) -> None:
        assert number == len(self.calls) + 1
        self.calls.append((saves, loads))
        self.loaded += len(loads)
        self.load_seconds += len(loads) * self.seconds
        if not self.held:
            self.done = number

    def moved_number(self) -> int:
        return self.done

    def move_totals(self) -> MoveTotals:
        return MoveTotals(self.loaded, self.load_seconds, 0, 0.0)

    def spoiled_rows(self, number: int, rows: Any) -> set[int]:
        return set()

    def wait_moved(self, number: int) -> None:
        self.done = number


class World:
    """Blocks, a tier and requests that compute their prompts at once. checkpoints: of states, one
    at the end of each prompt."""

    def __init__(
        self,
        mover: Mover | None = None,
        checkpoints: StateCheckpoints | None = None,
        files: DiskStore | None = None,
        **setup: Any,
    ) -> None:
        self.mover = mover or Mover()
        self.blocks = BlockManager(
            BLOCKS, SIZE, enable_prefix_caching=True, checkpoints=checkpoints
        )
        values: dict[str, Any] = {"queue_pages": 100, "min_tokens": 0, **setup}
        self.tiers = KVTiers(
            self.blocks, TierSetup(values.pop("pages", 50), 1, **values), self.mover, files
        )
        self._number = 0
        self.now = 0.0

    def compute(self, tokens: list[int], lora: LoRARequest | None = None) -> None:
        """A request that runs alone, and ends."""
        array = np.array([*tokens, 0], np.int32)
        match = self.blocks.match_prefix(array, "", lora)
        tables = self.blocks.allocate(len(tokens), match)
        self.step()
        rest = array[match.num_blocks * SIZE : len(tokens)]
        self.blocks.publish(tables, rest, match.num_blocks, match.last_hash, lora)
        if self.blocks.checkpoints is not None:
            self._keep_state(self.blocks.checkpoints, tables[0])
        self.blocks.free(tables)
        self.step()

    def _keep_state(self, checkpoints: StateCheckpoints, table: list[int]) -> None:
        place = checkpoints.take()
        assert place is not None
        checkpoints.keep(table[-1], place, between=len(table) % checkpoints.interval_blocks != 0)

    @property
    def saved(self) -> int:
        return sum(len(saves) for saves, _ in self.mover.calls)

    def step(self) -> list[int]:
        done = self.tiers.take_in(self.now)
        self.tiers.send()
        return done

    def sequence(self, tokens: list[int], lora: LoRARequest | None = None) -> Sequence:
        self._number += 1
        request = make_request(self._number, [*tokens, 0])
        return Sequence(msgspec.structs.replace(request, lora=lora))

    def begins(self, sequence: Sequence, seconds_a_token: float = 0.0) -> bool:
        found = self.blocks.match_prefix(sequence.cacheable_token_ids, "", sequence.lora)
        return self.tiers.begin(sequence, found, seconds_a_token)

    def reads(self, tokens: list[int], **fields: Any) -> bool:
        return self.begins(self.sequence(tokens), **fields)

    def on_device(self, tokens: list[int]) -> int:
        return self.blocks.match_prefix(np.array([*tokens, 0], np.int32)).num_blocks

    def finish(self) -> None:
        """Let all moves complete, and the blocks of reads return."""
        self.tiers.settle()
        self.tiers.take_in(self.now)
        self.tiers.check_integrity()
        assert self.blocks.pool.num_referenced == 0


def prompt(number: int, blocks: int = 6) -> list[int]:
    return [100 * number + at for at in range(blocks * SIZE)]


def test_an_evicted_prompt_is_read_and_found_on_the_device() -> None:
    world = World()
    world.compute(prompt(1))
    world.compute(prompt(2))
    assert world.on_device(prompt(1)) < 6
    assert world.reads(prompt(1))
    world.step()
    assert world.step() == [1]
    assert world.on_device(prompt(1)) == 6
    world.finish()


def test_a_short_rest_is_computed() -> None:
    world = World(min_tokens=25)
    world.compute(prompt(1))
    world.compute(prompt(2))
    assert not world.reads(prompt(1)), "24 tokens"
    assert world.tiers.counts.asked_tokens == 0, "nobody looked"


@pytest.mark.parametrize(("seconds", "reads"), [(0.0, True), (0.5, False), (2.0, True)])
def test_a_prefix_is_computed_where_that_is_predicted_to_be_faster(
    seconds: float, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page takes four seconds to read. seconds: of a token that is computed, 0 if unknown."""
    monkeypatch.setattr(read_speed, "LEAST_MEASURED_BYTES", 1)
    world = World(Mover(seconds=4.0))
    for number in (1, 2):
        world.compute(prompt(number))
    assert world.reads(prompt(1), seconds_a_token=0.5), "no page was read yet, so nothing is known"
    world.step()
    world.step()
    world.compute(prompt(2))
    assert world.reads(prompt(1), seconds_a_token=seconds) == reads
    assert (world.tiers.counts.computed_tokens > 0) != reads
    world.finish()


def test_the_speed_of_few_bytes_keeps_no_prefix_from_being_read() -> None:
    """The first copies may be slow for reasons of their own, which no later one would correct."""
    assert read_speed.LEAST_MEASURED_BYTES > 10**7
    world = World(Mover(seconds=4.0))
    for number in (1, 2):
        world.compute(prompt(number))
    assert world.reads(prompt(1), seconds_a_token=0.5)
    world.step()
    world.step()
    world.compute(prompt(2))
    assert world.reads(prompt(1), seconds_a_token=0.5)
    world.finish()


def test_pages_that_are_computed_much_faster_are_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until a speed says otherwise; the speed of few bytes says nothing."""
    monkeypatch.setattr(read_speed, "LEAST_MEASURED_BYTES", 1)
    world = World(Mover(seconds=1.0))
    world.compute(prompt(1))
    world.compute(prompt(2))
    assert world.reads(prompt(1))
    world.step()
    world.step()
    written = world.saved
    assert written
    assert not world.reads(prompt(3), seconds_a_token=0.1 / SIZE)
    world.compute(prompt(4, blocks=8))
    world.compute(prompt(5, blocks=8))
    assert world.saved == written
    assert world.tiers.counts.dropped_cheap > 0
    assert not world.reads(prompt(6), seconds_a_token=10 / SIZE)
    world.compute(prompt(7, blocks=8))
    assert world.saved > written


def test_a_dropped_page_leaves_no_hole() -> None:
    world = World(queue_pages=2)
    world.mover.held = True  # two pages are under way, and no further one has room
    world.compute(prompt(1))
    world.compute(prompt(2, blocks=8))
    assert world.tiers.counts.dropped_queue == 4
    world.mover.done = len(world.mover.calls)
    world.step()
    kept = {page.packed for page in world.tiers._pages}
    blocks = np.array(prompt(1), np.int32).reshape(-1, SIZE)
    whole = [each.tobytes() in kept for each in blocks].index(False)
    assert whole == len(kept) == 2, "the beginning is written first"
    assert world.reads(prompt(1))
    assert [part.missing.index for part in world.tiers._reads.loads[0].parts] == [0, 1]
    world.finish()


@pytest.mark.parametrize(("write", "written"), [("back", 0), ("through", 6)])
def test_blocks_are_written_when_unused_or_when_computed(write: str, written: int) -> None:
    world = World(write=write)
    array = np.array([*prompt(1), 0], np.int32)
    match = world.blocks.match_prefix(array)
    tables = world.blocks.allocate(24, match)
    world.blocks.publish(tables, array[:24], 0, match.last_hash)
    world.step()
    assert sum(len(saves) for saves, _ in world.mover.calls) == written
    world.blocks.free(tables)
    world.step()
    assert sum(len(saves) for saves, _ in world.mover.calls) == 6, "once each"


@pytest.mark.parametrize("blocks", range(1, BLOCKS))
def test_states_are_written_where_a_prefix_that_is_read_may_end(blocks: int) -> None:
    world = World(checkpoints=StateCheckpoints(2, interval_blocks=2), num_states=2, queue_states=2)
    world.compute(prompt(1, blocks))
    world.step()
    kinds = [move.kind for saves, _ in world.mover.calls for move in saves]
    assert (kinds.count(0), kinds.count(1)) == (blocks, int(blocks % 2 == 0))
    world.finish()


def test_a_request_reads_twice_at_most_until_it_is_admitted() -> None:
    world = World()
    world.compute(prompt(1))
    sequence = world.sequence(prompt(1))
    for expected in (True, True, False):
        world.compute(prompt(2, blocks=8))  # its blocks are gone again
        assert world.begins(sequence) == expected
        world.finish()
    sequence.tier_reads = 0  # as at its admission
    assert world.begins(sequence)
    world.finish()


def test_pages_go_with_their_adapter() -> None:
    world = World()
    world.compute(prompt(1), LORA)
    world.compute(prompt(2, blocks=8))
    assert not world.reads(prompt(1)), "they are the adapter's"
    assert world.begins(world.sequence(prompt(1), LORA))
    world.finish()
    world.compute(prompt(2, blocks=8))
    world.blocks.retire_lora(1)
    assert {page.lora for page in world.tiers._pages} == {None}
    assert not world.begins(world.sequence(prompt(1), LORA))


def test_moves_of_before_a_reset_make_nothing_findable() -> None:
    world = World(Mover(held=True))
    world.compute(prompt(1))
    world.compute(prompt(2, blocks=8))
    world.mover.done = len(world.mover.calls)
    world.step()
    assert world.reads(prompt(1))
    world.step()  # the read is under way, and so are writes
    world.blocks.reset_prefix_cache()
    world.finish()
    assert world.on_device(prompt(1)) == 0
    assert list(world.tiers._pages) == []


def test_a_page_of_other_tokens_with_the_same_hash_is_a_miss() -> None:
    pages = HostPages(4, "lru")
    place = pages.take()
    assert place is not None
    pages.put(place[0], Page(0, hash=7, parent=3, packed=b"abcd"))
    assert pages.find(7, 3, b"abcd") == place[0]
    assert pages.find(7, 3, b"abce") is None
    assert pages.find(7, 4, b"abcd") is None


def test_pages_that_are_read_are_not_evicted() -> None:
    world = World(Mover(held=True), pages=7)
    world.compute(prompt(1))
    world.compute(prompt(2, blocks=8))
    world.mover.done = len(world.mover.calls)
    world.step()
    assert world.reads(prompt(1))
    places = world.tiers._reads.loads[0].places
    world.step()
    world.compute(prompt(3, blocks=2))
    written = {move.row for saves, _ in world.mover.calls[-2:] for move in saves}
    assert written.isdisjoint(places)
    world.finish()
