"""Pages that go from device to device: tokens of one engine for every kind of cache, another
transport where the memory cannot be mapped, and a damaged page costs a computation.

The double of a device's memory is torch's own shared storage; test_gpu_transfers has a card's."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from atom.kv_transfer_config.values import TRANSPORTS
from atom.model_engine.kv_transfer import setup
from atom.model_engine.page_access import DevicePage
from atom.model_engine.runner.pages import transferred_pages
from atom.model_engine.runner.pages.peer_memory import PeerMemory
from atom.model_engine.transfer_legs import TransferResult
from atom.model_ops.page_table import PageTable
from atom.sampling_params import SamplingParams
from tests.support.engine_core.cache_kinds import KINDS
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.shared_storages import SharedStorages
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.tiny_model import make_tiny_checkpoint

_IPC = {"transports": TRANSPORTS["ipc"]}
_GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
_PROMPT = list(range(10, 110))
_IN_EVERY_RUN = ("windows", "states beside windows, fp8")


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[SharedStorages]:
    """The devices of the engines that start."""
    made: list[SharedStorages] = []

    def device(where: torch.device) -> SharedStorages:
        made.append(SharedStorages())
        return made[-1]

    monkeypatch.setattr(transferred_pages, "device_runtime", device)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "model")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, marks=() if each in _IN_EVERY_RUN else pytest.mark.whole)
        for each in KINDS
    ],
)
def test_tokens_are_those_of_one_engine(
    kind: str,
    devices: list[SharedStorages],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rings of four pages: places are written again and again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("atom.model_engine.kv_transfer.page_ring._LEAST_BYTES", 1)
    model = KINDS[kind].checkpoint(tmp_path / "model", monkeypatch)
    pair = TransferPair(model, transfer=_IPC, **KINDS[kind].options)
    try:
        for prompt, params in mixed_requests(pair.producer.config.model.vocab_size, 12)[::6]:
            expected = pair.answered_whole(prompt, params)
            answer = pair.decode(prompt, params, pair.prefill(prompt, params))
            assert answer.tokens == expected
            if answer.outcome is not None:
                assert answer.outcome.result is TransferResult.TRANSFERRED, answer
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()
    assert caplog.text.count("come by ipc") == 1
    assert all(each.copies for each in devices), "of both engines"


def _answered(pair: TransferPair, prompt: list[int]) -> tuple[TransferResult, str]:
    expected = pair.answered_whole(prompt, _GREEDY, pair.consumer)
    answer = pair.decode(prompt, _GREEDY, pair.prefill(prompt, _GREEDY))
    assert answer.tokens == expected
    assert answer.outcome is not None
    pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    return answer.outcome.result, answer.outcome.reason


def _cannot_be_mapped(devices: list[SharedStorages], patch: pytest.MonkeyPatch) -> None:
    def fails(self: SharedStorages, handle: bytes) -> int:
        raise OSError("peer access is not supported")

    patch.setattr(SharedStorages, "open", fails)


def _is_full(devices: list[SharedStorages], patch: pytest.MonkeyPatch) -> None:
    def fails(self: SharedStorages, size: int) -> int:
        raise OSError("out of memory")

    patch.setattr(SharedStorages, "allocate", fails)


def _is_of_another_kind(devices: list[SharedStorages], patch: pytest.MonkeyPatch) -> None:
    kinds = iter(("cuda 8", "hip 8"))
    patch.setattr(PeerMemory, "kind", property(lambda self: next(kinds)))


def _is_of_another_host(devices: list[SharedStorages], patch: pytest.MonkeyPatch) -> None:
    hosts = iter(("one", "another"))
    patch.setattr(setup, "host_identity", lambda: next(hosts))


def _is_none(devices: list[SharedStorages], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transferred_pages, "device_runtime", lambda device: None)


@pytest.mark.parametrize(
    ("spoil", "used"),
    [
        (_cannot_be_mapped, "shm"),
        (_is_full, "shm"),
        (_is_of_another_kind, "shm"),
        (_is_none, "shm"),
        (_is_of_another_host, "tcp"),
    ],
)
def test_memory_that_cannot_be_used_is_replaced(
    spoil: Callable[[list[SharedStorages], pytest.MonkeyPatch], None],
    used: str,
    devices: list[SharedStorages],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    spoil(devices, monkeypatch)
    pair = TransferPair(model, transfer=_IPC)
    try:
        assert _answered(pair, _PROMPT) == (TransferResult.TRANSFERRED, "")
    finally:
        pair.close()
    assert caplog.text.count(f"come by {used}") == 1
    assert "come by ipc" not in caplog.text


@pytest.mark.parametrize("damaged", [0, 3, 5])
def test_a_damaged_page_costs_a_computation(
    damaged: int, devices: list[SharedStorages], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found when it is in its block already, which no request has found by then."""
    pair = TransferPair(model, transfer=_IPC)
    real, count = SharedStorages.copy, 0

    def copy(self: SharedStorages, to: int, source: int, size: int, stream: int) -> None:
        nonlocal count
        real(self, to, source, size, stream)
        if self is devices[0]:
            if count == damaged:
                ctypes.c_char.from_address(to + size // 2).value = b"\xff"
            count += 1

    monkeypatch.setattr(SharedStorages, "copy", copy)
    try:
        result, reason = _answered(pair, _PROMPT)
        assert reason == "checksum"
        assert result is (TransferResult.TRANSFERRED if damaged else TransferResult.RECOMPUTED)
        assert _answered(pair, _PROMPT[1:]) == (TransferResult.TRANSFERRED, "")
    finally:
        pair.close()


def test_a_lost_consumers_memory_serves_the_next_one(
    devices: list[SharedStorages], model: Path
) -> None:
    pair = TransferPair(model, transfer=_IPC)
    try:
        assert _answered(pair, _PROMPT) == (TransferResult.TRANSFERRED, "")
        assert (len(devices[0]._own), devices[1].opened) == (1, 1)
        (peer,) = pair.consumer.core._desk._transfer._channel._peers.values()
        pair.consumer.core._desk._transfer._channel._post(peer.close)
        pair.turn_until(lambda: not devices[1].opened, "the memory is unmapped")
        assert _answered(pair, _PROMPT[1:]) == (TransferResult.TRANSFERRED, "")
        assert (len(devices[0]._own), devices[1].opened) == (1, 1)
    finally:
        pair.close()


def _table(rows: int, seed: int) -> PageTable:
    made = torch.Generator().manual_seed(seed)
    return PageTable.of([torch.randint(0, 255, (rows, 24, 2), generator=made) for _ in range(3)])


def _produce(pipe: Connection) -> None:
    """Read some blocks into memory of this process, and let another one read them."""
    memory = PeerMemory(SharedStorages(), [_table(8, 1)], torch.device("cpu"))
    offered = memory.offer(1 << 16)
    pages = memory.read(0, [5, 2, 7])
    for at, page in enumerate(pages):
        memory.copy(offered.address + at * page.size, page)
    pipe.send((offered.handle, offered.size, [(page.size, page.sum) for page in pages]))
    pipe.recv()


def test_pages_reach_another_process_to_the_byte() -> None:
    """Also after their producer was killed."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    producer = context.Process(target=_produce, args=(theirs,))
    producer.start()
    handle, size, sums = pipe.recv()
    table, source = _table(8, 2), _table(8, 1)
    memory = PeerMemory(SharedStorages(), [table], torch.device("cpu"))
    opened = memory.open(handle, size)
    producer.kill()
    producer.join()
    pages = [
        DevicePage(opened.address + at * page_bytes, page_bytes, total, opened)
        for at, (page_bytes, total) in enumerate(sums)
    ]
    wrong = DevicePage(pages[0].address, pages[0].size, bytes(8), opened)
    assert memory.write(0, [1, 3, 0, 6], [*pages, wrong], None) == [True, True, True, False]
    for own, theirs_ in zip(table.segments, source.segments, strict=True):
        assert own.memory[[1, 3, 0]].equal(theirs_.memory[[5, 2, 7]])


def test_a_handle_of_nothing_is_an_error() -> None:
    with pytest.raises(OSError, match=r"file|open|No such"):
        SharedStorages().open(b"\x93\xc4\x01a\xc4\x02/b\x10")
