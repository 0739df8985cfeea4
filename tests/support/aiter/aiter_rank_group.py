"""Two ranks that add up by AITER's double: each process has one, of a generation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

from atom.collectives.group import Group
from atom.collectives.torch_group import Place, TorchGroup, find_store
from atom.config import Config
from atom.model_engine.executor.tensor_parallel.rank_processes import RankOrder
from atom.model_engine.executor.tensor_parallel.step_channel import StepMemory, StepReceiver
from tests.support.aiter.aiter_models import amd_card
from tests.support.fake_aiter import FakeAiter
from tests.support.ranks.rank_group import RankGroup, follow_model


class AiterRankGroup(RankGroup):
    """`card` must be entered while a model runs."""

    follower = __name__

    def __init__(self, size: int) -> None:
        self._generation = ""
        super().__init__(size)

    @contextmanager
    def card(self, monkeypatch: pytest.MonkeyPatch, generation: str) -> Iterator[FakeAiter]:
        self._generation = generation
        with amd_card(monkeypatch, generation) as aiter:
            yield aiter

    def line(self, config: Config) -> bytes:
        return self._generation.encode() + b" " + config.to_json()


def _follow(order: RankOrder, rank: int, size: int) -> None:
    memory = StepMemory(order.memory)
    place = Place(rank, size, torch.device("cpu"), memory.counter(rank))
    group: Group = TorchGroup(place, find_store(order.port, size))
    receiver = StepReceiver(memory, order.wakeup)
    for line in sys.stdin.buffer:
        generation, config = line.split(b" ", 1)
        with amd_card(pytest.MonkeyPatch(), generation.decode()):
            follow_model(Config.from_json(config), group, receiver)
    group.close()


if __name__ == "__main__":
    _follow(msgspec.json.decode(sys.argv[1], type=RankOrder), int(sys.argv[2]), int(sys.argv[3]))
