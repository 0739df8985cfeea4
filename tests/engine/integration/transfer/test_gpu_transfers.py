"""On a GPU: prompts computed by one engine and answered by another, and blocks that the host's tier
gives back, have the tokens of one engine that keeps everything on the device.

float32 throughout, so that a difference is a fault and not rounding. Two engines share a card.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.kv_transfer_config.values import TRANSPORTS
from atom.model_engine.page_access import DevicePage
from atom.model_engine.request_image import RequestImage
from atom.model_engine.runner.pages.device_runtime import DeviceRuntime
from atom.model_engine.runner.pages.peer_memory import PeerMemory
from atom.model_engine.transfer_legs import TransferResult
from atom.model_ops.page_table import PageTable
from atom.sampling_params import SamplingParams
from tests.engine.integration.core.test_kv_tiers import (
    KINDS,
    OF_DENSE,
    ask,
    conversations,
    least_blocks,
)
from tests.engine.integration.transfer.test_transferred_adapters import Adapted
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.models.vision_checkpoints import Picture, VisionModel, text

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
_DEVICE = {"device": "cuda" if torch.cuda.is_available() else "cpu", "enforce_eager": True}
_BLOCKS = [5, 2, 61, 7, 33, 0, 40]
_REQUESTS = 20
_GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class _Legs:
    """Requests of a pair, each answered whole by the consumer and then divided."""

    def __init__(self, pair: TransferPair) -> None:
        self._pair = pair
        self._transferred = 0

    def check(
        self, prompt: list[int], asked: dict[str, Any], given: dict[str, Any] | None = None
    ) -> None:
        """Compare the two answers. asked, given: fields of the producer's and of the consumer's
        request, the same if `given` is None."""
        pair, given = self._pair, asked if given is None else given
        whole = pair.begin_decode(prompt, _GREEDY, None, cache_salt="whole", **given)
        expected = pair.finish(whole).tokens
        note = pair.prefill(prompt, _GREEDY, **asked)
        answer = pair.decode(prompt, _GREEDY, note, **given)
        assert answer.tokens == expected, prompt
        self._transferred += (
            answer.outcome is not None and answer.outcome.result is TransferResult.TRANSFERRED
        )

    def end(self) -> None:
        assert self._transferred == _REQUESTS
        self._pair.turn_until(lambda: self._pair.held_blocks() == (0, 0), "no block is held")


def _prompts() -> list[list[int]]:
    dice = random.Random(7)
    return [
        [dice.randrange(3, 200) for _ in range(dice.randrange(40, 200))] for _ in range(_REQUESTS)
    ]


def _states(legs: Callable[[TransferPair], _Legs], folder: Path, **fields: Any) -> TransferPair:
    pair = TransferPair(make_tiny_checkpoint(folder / "model", "qwen3_next"), **fields)
    own = legs(pair)
    for prompt in _prompts():
        own.check(prompt, {})
    own.end()
    return pair


def _adapters(legs: Callable[[TransferPair], _Legs], folder: Path, **fields: Any) -> TransferPair:
    adapted = Adapted("qwen3", folder, **fields)
    own = legs(adapted.pair)
    for number, prompt in enumerate(_prompts()):
        asked, given = adapted.producers(number % 2), adapted.consumers(number % 2)
        own.check(prompt, {"lora": asked}, {"lora": given})
    own.end()
    return adapted.pair


def _images(legs: Callable[[TransferPair], _Legs], folder: Path, **fields: Any) -> TransferPair:
    model = VisionModel(folder / "model", "qwen3-vl")
    pair = TransferPair(model.folder, **fields)
    own = legs(pair)
    for number in range(_REQUESTS):
        prompt = model.prompt(text(20 + number, 1), Picture(2, 3, number), text(24, number))
        images = [RequestImage.of(image) for image in prompt.images]
        own.check(prompt.token_ids, {"images": images})
    own.end()
    return pair


@pytest.mark.parametrize("transport", ["shm", "tcp", "ipc"])
@pytest.mark.parametrize("played", [_states, _adapters, _images])
def test_divided_requests_are_answered_as_by_one_engine(
    played: Callable[..., TransferPair], transport: str, tmp_path: Path
) -> None:
    """A process cannot map its own memory by a handle, so `ipc` is replaced here."""
    played(_Legs, tmp_path, transfer={"transports": TRANSPORTS[transport]}, **_DEVICE).close()


def _table(seed: int, device: torch.device) -> PageTable:
    made = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(0, 2**60, (64, 4096), generator=made) for _ in range(8)]
    return PageTable.of([tensor.to(device) for tensor in tensors])


def _produce(pipe: Connection, device: torch.device) -> None:
    """Read some blocks into memory of a device, and let another process read them."""
    memory = PeerMemory(DeviceRuntime(device), [_table(1, device)], device)
    offered = memory.offer(64 << 20)
    pages = memory.read(0, _BLOCKS)
    for at, page in enumerate(pages):
        memory.copy(offered.address + at * page.size, page)
    pipe.send((offered.handle, offered.size, memory.kind, [(p.size, p.sum) for p in pages]))
    pipe.recv()


@pytest.mark.parametrize("producers", range(max(1, torch.cuda.device_count())))
def test_pages_of_another_process_arrive_to_the_byte(producers: int) -> None:
    """Of the same device and of others, also after their producer was killed."""
    own = torch.device("cuda", 0)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    producer = context.Process(target=_produce, args=(theirs, torch.device("cuda", producers)))
    producer.start()
    handle, size, kind, sums = pipe.recv()
    table, source = _table(2, own), _table(1, own)
    memory = PeerMemory(DeviceRuntime(own), [table], own)
    assert memory.kind == kind
    opened = memory.open(handle, size)
    pages = [
        DevicePage(opened.address + at * page_bytes, page_bytes, total, opened)
        for at, (page_bytes, total) in enumerate(sums)
    ]
    wrong = DevicePage(pages[0].address, pages[0].size, bytes(8), opened)
    for killed in (False, True):
        if killed:
            producer.kill()
            producer.join()
        found = memory.write(0, [*range(len(pages)), 63], [*pages, wrong], None)
        assert found == [True] * len(pages) + [False], f"killed: {killed}"
        for mine, its in zip(table.segments, source.segments, strict=True):
            assert mine.memory[: len(pages)].equal(its.memory[_BLOCKS])
            mine.memory.zero_()


@pytest.mark.parametrize("kind", ["states", "dense", "adapters", "window-beside-dense", "latent"])
@pytest.mark.parametrize("write", ["back", "through"])
def test_answers_are_those_without_the_tier(kind: str, write: str, tmp_path: Path) -> None:
    adapters = kind == "adapters"
    folder = make_tiny_checkpoint(tmp_path / "model", **KINDS["dense" if adapters else kind])
    way = replace(OF_DENSE["adapters" if adapters else "plain"], write=write)
    made = [
        make_adapter(tmp_path / f"adapter-{seed}", folder, rank=4, seed=seed)
        for seed in ((1, 2) if adapters else ())
    ]
    options = {**way.options(made), **_DEVICE}
    plain = CoreDriver(str(folder), num_kv_blocks=900, **options)
    blocks = least_blocks(plain) + way.tight
    tiered = CoreDriver(str(folder), num_kv_blocks=blocks, **options, **way.tier)
    try:
        for turns in conversations(5, 6, adapters=2 if adapters else 0):
            assert ask(tiered, turns) == ask(plain, turns)
        stats = tiered.scheduler.stats()
        assert stats.offload_load_bytes_total > 0
        assert stats.offload_checksum_errors_total == 0
    finally:
        tiered.close()
        plain.close()
