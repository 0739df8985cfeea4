"""Adapters that are loaded, replaced and unloaded while two engines divide requests: every answer
is that of one engine with the files that its request began with, or a clear error, and no page
stays behind."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom.lora_config import LoraConfig
from atom.model_engine.control import Control, LoadLora, UnloadLora
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.transfer_legs import PrefillLeg, TransferResult
from atom.model_engine.wire.engine_protocol import (
    AddBody,
    UtilityBody,
    UtilityResponseBody,
    encode,
)
from atom.sampling_params import SamplingParams
from tests.engine.lora.test_lora_parity import lora_of, request_of
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.engine_core.wired_core import WiredCore
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.waiting import wait_until

_NAME, _NOBODYS = "the adapter", 1_000_000
_FILES, _EVENTS, _LIVES = 3, 40, 4
_GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
_MAY_LOAD = LoraConfig(modules=(), may_load=True, max_loras=2, max_rank=8, max_cpu_loras=8)
_whole = pytest.mark.whole


class World:
    """The files, and the tokens of one engine that has them all from its start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = make_tiny_checkpoint(folder / "model")
        self.files = [
            make_adapter(folder / f"adapter-{seed}", self.model, seed=seed)
            for seed in range(_FILES)
        ]
        self._one = WiredCore(
            self.model, lora=lora_of(self.files), num_kv_blocks=128, max_model_len=256
        )
        self._known: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def expected(self, file: int, asked: Request) -> list[int]:
        key = file, tuple(asked.prompt_token_ids)
        if key not in self._known:
            request = msgspec.structs.replace(
                asked, id=len(self._known) + 1, lora=request_of(file + 1), kv_transfer=None
            )
            self._one.send(*encode(AddBody([request])))
            self._one.turn_until_done({request.id})
            self._known[key] = self._one.sockets.tokens[request.id]
        return self._known[key]

    def close(self) -> None:
        self._one.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("adapters"))
    yield made
    made.close()


class Holder:
    """One engine of the pair, and the file that it serves under the name; None without one. Its
    files are replaced in one folder, as a training job replaces them."""

    def __init__(self, core: WiredCore, folder: Path) -> None:
        self.core = core
        self.file: int | None = None
        self._folder = folder
        self._numbers = itertools.count(1)
        self._served = _NOBODYS
        self._loading: tuple[int, int] | None = None  # the number, and the file

    @property
    def request(self) -> LoRARequest:
        return LoRARequest(_NAME, self._served)

    def change(self, dice: random.Random, files: list[Path]) -> None:
        """Begin to load a file, or unload the one that is served; nothing while one is loaded."""
        if self._loading is not None:
            return
        if self.file is not None and dice.random() < 0.3:
            self.file = None
            self._call(UnloadLora(self._served))
            return
        file = dice.randrange(len(files))
        shutil.copytree(files[file], self._folder, dirs_exist_ok=True)
        self._loading = next(self._numbers), file
        self._call(LoadLora(self._loading[0], str(self._folder)))

    def look(self) -> None:
        """Serve a file that was loaded, instead of the one before."""
        if self._loading is None:
            return
        number, file = self._loading
        told = [
            each
            for each in self.core.sockets.others
            if isinstance(each, UtilityResponseBody) and each.call_id == number
        ]
        if not told:
            return
        assert (told[0].error, told[0].result) == (None, None)
        before, self._served, self._loading = self._served, number, None
        if self.file is not None:
            self._call(UnloadLora(before))
        self.file = file

    def end(self) -> None:
        """Serve nothing more."""
        if self.file is not None:
            self._call(UnloadLora(self._served))
        self.file = None

    @property
    def is_loading(self) -> bool:
        return self._loading is not None

    def _call(self, call: Control[Any]) -> None:
        number = call.number if isinstance(call, LoadLora) else 0
        self.core.send(*encode(UtilityBody(number, call.name, list(call.args))))


@dataclass(slots=True)
class Asked:
    """A request on its way. file: that the consumer served as the decode leg began."""

    prefill: Request | None
    prompt: list[int]
    decode: Request | None = None
    file: int | None = None


class Life:
    """Drawn events of a pair: requests begin, adapters change, both engines turn."""

    def __init__(self, world: World, seed: int) -> None:
        self._dice = dice = random.Random(seed)
        options: dict[str, Any] = {"max_num_batched_tokens": dice.choice((32, 80, 256))}
        if dice.random() < 0.5:  # a device cache of two prompts, and a tier below it
            options |= {"num_kv_blocks": 24, "kv_offloading_size": 0.01}
            options |= {"kv_offload_min_tokens": 16}
        self._world = world
        self.pair = TransferPair(world.model, lora=_MAY_LOAD, **options)
        place = world.folder / f"life-{seed}"
        self._producer = Holder(self.pair.producer, place / "producer")
        self._consumer = Holder(self.pair.consumer, place / "consumer")
        self._prompts = [
            [dice.randrange(10, 200) for _ in range(dice.randrange(40, 100))] for _ in range(3)
        ]
        self._asked: list[Asked] = []
        self.results: Counter[TransferResult | str] = Counter()

    def play(self) -> None:
        for _ in range(_EVENTS):
            event = self._dice.random()
            if event < 0.3:
                self._ask()
            elif event < 0.6:
                holder = self._dice.choice((self._producer, self._consumer))
                holder.change(self._dice, self._world.files)
            for _ in range(self._dice.randrange(4)):
                self._turn()
        wait_until(self._is_over, "every request ends", poll_seconds=0.0)
        for asked in self._asked:
            self._check(asked)
        for holder in (self._producer, self._consumer):
            holder.end()
        wait_until(self._holds_nothing, "both engines hold no block", poll_seconds=0.0)
        stats = self.pair.producer.core._stats().stats
        assert stats.kv_transfer_expired_total == 0, "no ticket was left to its lease"

    def _turn(self) -> None:
        self.pair.turn()
        for holder in (self._producer, self._consumer):
            holder.look()
        for asked in self._asked:
            self._go_on(asked)

    def _is_over(self) -> bool:
        self._turn()
        ended = self.pair.consumer.sockets.finished
        if any(holder.is_loading for holder in (self._producer, self._consumer)):
            return False
        return all(each.decode is not None and each.decode.id in ended for each in self._asked)

    def _holds_nothing(self) -> bool:
        self.pair.turn()
        return self.pair.held_blocks() == (0, 0)

    def _ask(self) -> None:
        """Begin a request with a prefill leg, if the producer has the adapter."""
        prompt, prefill = self._dice.choice(self._prompts), None
        if self._producer.file is not None:
            one = msgspec.structs.replace(_GREEDY, max_tokens=1)
            lora = self._producer.request
            prefill = self.pair.request(prompt, one, PrefillLeg(), lora=lora)
            self.pair.producer.send(*encode(AddBody([prefill])))
        self._asked.append(Asked(prefill, prompt))

    def _go_on(self, asked: Asked) -> None:
        """Begin the decode leg of a request whose prefill leg has ended."""
        if asked.decode is not None:
            return
        leg = None
        if asked.prefill is not None:
            rows = self.pair.producer.sockets.finished.get(asked.prefill.id)
            if rows is None:
                return
            if rows[0].ticket is not None:  # else there was no room for its pages
                leg = self.pair.leg_of(rows[0].ticket)
        asked.file, lora = self._consumer.file, self._consumer.request
        asked.decode = self.pair.begin_decode(asked.prompt, _GREEDY, leg, lora=lora)

    def _check(self, asked: Asked) -> None:
        assert asked.decode is not None
        sockets, number = self.pair.consumer.sockets, asked.decode.id
        (row,) = sockets.finished[number]
        if asked.file is None:
            assert row.detail == f"no adapter {_NAME!r} is held here", row
            self.results["refused"] += 1
            return
        assert sockets.tokens.get(number) == self._world.expected(asked.file, asked.decode), row
        if number in sockets.transfers:
            self.results[sockets.transfers[number].result] += 1


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=_whole) for n in range(1, 10))])
def test_answers_are_of_the_files_that_requests_began_with(first: int, world: World) -> None:
    results: Counter[TransferResult | str] = Counter()
    for seed in range(first * _LIVES, (first + 1) * _LIVES):
        life = Life(world, seed)
        try:
            life.play()
        finally:
            life.pair.close()
        results += life.results
    seen = {TransferResult.TRANSFERRED, TransferResult.RECOMPUTED, "refused"}
    assert seen <= results.keys(), results
