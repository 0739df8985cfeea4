"""KV events on the wire: frames, numbers and replays as vLLM's readers expect them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from atom.errors import ConfigError
from atom.kv_events_config import KVEventsConfig, kv_events_config
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.block_log import Removed, Stored
from atom.model_engine.kv_events.cached_blocks import CachedBlocks
from atom.model_engine.kv_events.events import EventMaker, salt_digest
from atom.model_engine.kv_events.publisher import KVEventPublisher
from atom.sizing.mask_rule import sliding_window
from tests.support.engine_core.kv_event_index import KVEventIndex
from tests.support.waiting import HANG_SECONDS, wait_until

SIZE = 4
END = b"\xff" * 8


def asked(**keys: Any) -> str:
    return json.dumps({"enable_kv_cache_events": True, **keys})


@contextmanager
def reader(context: zmq.Context[Any], kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    with context.socket(kind) as found:
        found.linger = 0
        found.rcvtimeo = int(HANG_SECONDS * 1000)
        found.connect(endpoint)
        yield found


def blocks_of(*windows: int | None) -> BlockManager:
    masks = tuple(map(sliding_window, windows or (None,)))
    return BlockManager(32, SIZE, enable_prefix_caching=True, root="model", masks=masks)


def compute(blocks: BlockManager, tokens: list[int], salt: str = "") -> tuple[list[int], ...]:
    """As a sequence would: look up, take blocks, publish them; its tables."""
    array = np.array(tokens, np.int32)
    match = blocks.match_prefix(array, salt)
    tables = blocks.allocate(len(tokens), match)
    for table in tables:
        blocks.append_each([table] * (len(tokens) // SIZE - len(table)))
    rest = array[match.num_blocks * SIZE : len(tokens) // SIZE * SIZE]
    blocks.publish(tables, rest, match.num_blocks, match.last_hash)
    return tables


def replayed(dealer: zmq.Socket[bytes], start: int) -> list[tuple[bytes, int, Any]]:
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    found = []
    while True:
        empty, topic, number, payload = dealer.recv_multipart()
        assert empty == b""
        if number == END:
            assert (topic, payload) == (b"", b"")
            return found
        found.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))


def test_frames_numbers_and_replays(tmp_path: Path) -> None:
    live, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
    config = kv_events_config(
        asked(endpoint=live, replay_endpoint=replay, topic="kv@pod@m", buffer_steps=3)
    )
    assert config is not None
    blocks = blocks_of()
    publisher = KVEventPublisher(config, 0, blocks)
    with (
        zmq.Context() as context,
        reader(context, zmq.SUB, live) as sub,
        reader(context, zmq.DEALER, replay) as dealer,
    ):
        sub.subscribe(b"kv@")
        publisher.publish()  # nothing happened, nothing is sent
        assert replayed(dealer, 0) == []
        for step in range(5):
            compute(blocks, [step] * SIZE * 2 + [9])
            publisher.publish()
        # Whoever came late asks for what is still kept, from any number on.
        wait_until(lambda: len(replayed(dealer, 3)) == 2, "the thread has sent them all")
        found = replayed(dealer, 3)
        assert [number for _, number, _ in found] == [3, 4]
        assert [number for _, number, _ in replayed(dealer, 1)] == [2, 3, 4], "three are kept"
        topic, _, (ts, events, rank) = found[0]
        assert topic == b"kv@pod@m"
        assert ts > 1e9
        assert rank == 0
        (stored,) = events
        assert stored == {
            "type": "BlockStored",
            "block_hashes": stored["block_hashes"],
            "parent_block_hash": None,
            "token_ids": [3] * SIZE * 2,
            "block_size": SIZE,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
        # The live socket sends what a replay sends, once it knows of the reader.
        topic, number, payload = b"", b"", msgspec.msgpack.encode([0, []])
        while msgspec.msgpack.decode(payload)[1] != [{"type": "AllBlocksCleared"}]:
            blocks.reset_prefix_cache()
            publisher.publish()
            while sub.poll(100):
                topic, number, payload = sub.recv_multipart()
        assert (topic, len(number)) == (b"kv@pod@m", 8)
        first = int.from_bytes(number, "big")
        assert replayed(dealer, first)[0] == (topic, first, msgspec.msgpack.decode(payload))
        # Nonsense gets the end, and costs nobody else anything.
        dealer.send_multipart([b"", b"odd"])
        assert dealer.recv_multipart() == [b"", b"", END, b""]
        assert replayed(dealer, first)[0][1] == first
    publisher.close()


def knows(dealer: zmq.Socket[bytes]) -> dict[int, tuple[object, ...] | None]:
    """What a reader knows that asks for everything."""
    index = KVEventIndex()
    for _, _, (_, events, _) in replayed(dealer, 0):
        for event in events:
            index.take(event)
    return index.contents


class Publishing:
    """A cache whose publisher keeps so many batches for replays."""

    def __init__(self, folder: Path, windows: tuple[int | None, ...], steps: int) -> None:
        name = f"ipc://{folder}/{steps}"
        config = KVEventsConfig(endpoint=name, replay_endpoint=f"{name}-r", buffer_steps=steps)
        self.blocks = blocks_of(*windows)
        self.publisher = KVEventPublisher(config, 0, self.blocks)
        self.replays = f"{name}-r"

    def answer(self, tokens: list[int], salt: str) -> None:
        """A sequence that comes and goes; what it leaves is evicted when others need the room."""
        tables = compute(self.blocks, tokens, salt)
        self.blocks.free(tables, (0,) * len(tables))
        self.publisher.publish()


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_whoever_comes_late_learns_all_that_is_cached(
    tmp_path: Path, windows: tuple[int | None, ...]
) -> None:
    """Of a random life with evictions: a reader that asks for all of a short memory knows what one
    of a long memory knows, and goes on from there."""
    draw = random.Random(7)
    few, all_kept = (Publishing(tmp_path, windows, steps) for steps in (2, 10_000))
    with (
        zmq.Context() as context,
        reader(context, zmq.DEALER, few.replays) as late,
        reader(context, zmq.DEALER, all_kept.replays) as early,
    ):
        evicted = False
        for rounds in range(1, 25):
            shared = [draw.randrange(4)] * SIZE * 2
            tokens = [*shared, *([rounds] * SIZE * draw.randrange(1, 4)), rounds]
            for each in (few, all_kept):
                each.answer(tokens, "tenant" if rounds % 3 == 0 else "")
            wait_until(lambda: len(replayed(early, 0)) == rounds, "the thread has sent them")  # noqa: B023
            wait_until(lambda: knows(late) == knows(early), "the late reader knows as much")
            numbers = [number for _, number, _ in replayed(late, 0)]
            assert numbers == list(range(len(numbers)))
            evicted |= b"BlockRemoved" in msgspec.json.encode(replayed(early, rounds - 1)[0][2])
        assert evicted
    few.publisher.close()
    all_kept.publisher.close()


def test_what_is_cached_keeps_what_sets_it_apart() -> None:
    first = Stored(1, None, [7, 8], np.arange(2 * SIZE, dtype=np.int32).tobytes(), "tenant", "sql")
    more = Stored(1, 8, [9], np.arange(SIZE, dtype=np.int32).tobytes(), "", "sql")
    cached = CachedBlocks(SIZE)
    cached.follow([first, more, Stored(0, None, [5], b"", ""), Removed([5])])
    maker = EventMaker(SIZE, [sliding_window(None)] * 2)
    _, *events = maker.events(cached.entries())
    assert events == EventMaker(SIZE, [sliding_window(None)] * 2).events([first, more])


def test_layers_with_windows_are_told_apart(tmp_path: Path) -> None:
    config = KVEventsConfig(endpoint=f"ipc://{tmp_path}/l", replay_endpoint=f"ipc://{tmp_path}/r")
    blocks = blocks_of(None, 6)
    publisher = KVEventPublisher(config, 0, blocks)
    tables = compute(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9], salt="tenant")
    blocks.free(tables, (0, 0))
    blocks.pool.free(blocks.pool.allocate(blocks.num_free_blocks))  # evicts all that is cached
    publisher.publish()
    assert config.replay_endpoint is not None
    with zmq.Context() as context, reader(context, zmq.DEALER, config.replay_endpoint) as dealer:
        wait_until(lambda: bool(replayed(dealer, 0)), "the thread has sent them")
        batches = replayed(dealer, 0)
    publisher.close()
    events = batches[0][2][1]
    stored = [each for each in events if each["type"] == "BlockStored"]
    assert [each["group_idx"] for each in stored] == [0, 1]
    assert [each["kv_cache_spec_kind"] for each in stored] == ["full_attention", "sliding_window"]
    assert [each.get("kv_cache_spec_sliding_window") for each in stored] == [None, 6]
    assert all(each["extra_keys"] == [[salt_digest("tenant")], None] for each in stored)
    removed = [each for each in events if each["type"] == "BlockRemoved"]
    assert {each["group_idx"] for each in removed} == {0, 1}
    for each in removed:
        own = next(one for one in stored if one["group_idx"] == each["group_idx"])
        assert sorted(each["block_hashes"]) == sorted(own["block_hashes"])


def test_ports_of_ranks_count_up() -> None:
    config = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="tcp://[::1]:5600")
    assert config.of_rank(0) == config
    third = config.of_rank(2)
    assert (third.endpoint, third.replay_endpoint) == ("tcp://*:5559", "tcp://[::1]:5602")
    assert KVEventsConfig(endpoint="ipc:///tmp/x").of_rank(1).endpoint == "ipc:///tmp/x_dp1"


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"cannot listen at {endpoint}: .*; choose another"):
            KVEventPublisher(KVEventsConfig(endpoint=endpoint), 0, blocks_of())


@pytest.mark.parametrize(
    "document", [None, "{}", asked(publisher="null"), '{"enable_kv_cache_events": false}']
)
def test_nothing_is_published_unless_it_is_asked_for(document: str | None) -> None:
    assert kv_events_config(document) is None


def test_a_document_of_sglang_asks_by_its_publisher() -> None:
    found = kv_events_config('{"publisher": "zmq", "topic": "kv-events"}')
    assert found == KVEventsConfig(topic="kv-events")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("on", "give a JSON object with some of: enable_kv_cache_events"),
        (asked(endpont="tcp://*:1"), "endpont"),
        (asked(publisher="kafka"), "publisher is 'kafka'"),
        (asked(endpoint="5557"), "endpoint is '5557'; it must be tcp://ADDRESS:PORT"),
        (asked(endpoint="tcp://*:0"), "endpoint is 'tcp://\\*:0'"),
        (asked(endpoint="tcp://*:70000"), "endpoint is"),
        (asked(replay_endpoint="http://x"), "replay_endpoint is 'http://x'"),
        (asked(endpoint="tcp://*:5558", replay_endpoint="tcp://*:5558"), "give each its own"),
        (asked(buffer_steps=0), "buffer_steps must be at least 1, got 0"),
        (asked(hwm=-1), "hwm must be at least 1"),
        (asked(max_queue_size=True), "max_queue_size"),
    ],
)
def test_what_is_wrong_is_named(document: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kv_events_config(document)
