"""Messages to followers arrive whole and in order, however large, and end with the channel."""

from __future__ import annotations

import os
import threading

import pytest

from atom.model_engine.executor.tensor_parallel.step_channel import (
    StepMemory,
    StepReceiver,
    StepSender,
)
from tests.support.waiting import HANG_SECONDS

FOLLOWERS = 2
MESSAGES = [
    bytes([number % 251]) * size for number, size in enumerate((1, 5_000_000, 7, 1 << 20, 64) * 4)
]


class Follower:
    """Reads on a thread until the end."""

    def __init__(self, sender: StepSender, number: int) -> None:
        memory, wakeup = (os.dup(descriptor) for descriptor in sender.descriptors(number))
        self.memory = StepMemory(memory)
        self.read: list[bytes] = []
        self._receiver = StepReceiver(self.memory, wakeup)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while message := self._receiver.receive():
            self.read.append(bytes(message))


def test_every_follower_reads_every_message_in_order() -> None:
    sender = StepSender(FOLLOWERS)
    followers = [Follower(sender, number) for number in range(FOLLOWERS)]
    sender.let_go()
    for message in MESSAGES:
        sender.send(message)
    sender.close()
    for follower in followers:
        follower.wait()
        assert follower.read == MESSAGES


def test_an_empty_message_ends_a_follower_as_the_end_does() -> None:
    sender = StepSender(1)
    follower = Follower(sender, 0)
    sender.send(b"step")
    sender.send(b"")
    follower.wait()
    assert follower.read == [b"step"]


def test_a_follower_that_is_gone_is_an_error_and_no_hang() -> None:
    sender = StepSender(1)
    sender.let_go()
    with pytest.raises(BrokenPipeError):
        sender.send(b"step")


def test_counters_are_seen_by_all_and_apart() -> None:
    sender = StepSender(1)
    seen = StepMemory(os.dup(sender.descriptors(0)[0]))
    seen.counter(1)[0] += 3
    sender.memory.counter(0)[0] += 5
    assert [int(seen.counter(rank)[0]) for rank in range(3)] == [5, 3, 0]
