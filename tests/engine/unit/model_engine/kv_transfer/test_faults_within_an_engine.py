"""An error at any step of a leg, within its own engine: it costs a computation or that one request,
and everything that the leg had taken is given back."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from atom.model_engine.request import FinishReason
from atom.model_engine.transfer_legs import TransferResult
from tests.support.engine_core.virtual_transfer import (
    TICK_SECONDS,
    Network,
    VirtualEngine,
    decode_request,
    prefill_request,
)

PROMPT = list(range(10, 40))
_KEPT = ("blocks.match_prefix", "blocks.num_needed", "pool.share", "pages.read", "channel.answer")
_AWAITED = (
    "blocks.match_prefix", "blocks.publish_received", "pool.share", "pool.allocate", "pages.write",
    "pages.page_bytes", "channel.want", "channel.done", "channel.renew", "channel.consumed",
)  # fmt: skip
_QUEUE = ("queue.add", "loras.begin", "waiting.add")
_STEPS = (
    *(f"kept.{name}" for name in _KEPT),
    "tickets.promise",
    "tickets.grant",
    "tickets.read",
    *(f"awaited.{name}" for name in _AWAITED),
    "pulls.begin",
    *(f"{engine}.{name}" for engine in ("producer", "consumer") for name in _QUEUE),
)
# The other side hears nothing of these, and its own bound ends its wait.
_UNTOLD = ("awaited.channel.done", "kept.channel.answer")


class _StepError(Exception):
    """A step that went wrong."""


class Tripwire:
    """Counts the calls of steps, and lets one of them fail. at: the step and which call of it."""

    def __init__(self, at: tuple[str, int] | None = None) -> None:
        self._at = at
        self.calls: Counter[str] = Counter()
        self.met = False

    def on(self, owner: Any, name: str, step: str) -> None:
        """Watch a method that is looked up on an object."""
        method = getattr(owner, name)

        def called(*args: Any, **fields: Any) -> Any:
            self.calls[step] += 1
            if self._at == (step, self.calls[step]):
                self.met = True
                raise _StepError(step)
            return method(*args, **fields)

        setattr(owner, name, called)


class _Seen:
    """An object whose methods may be watched for one of its users alone."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def watch(wire: Tripwire, producer: VirtualEngine, consumer: VirtualEngine) -> None:
    kept: Any = producer.transfer.kept
    awaited: Any = consumer.transfer._awaited
    for user, name, steps in ((kept, "kept", _KEPT), (awaited, "awaited", _AWAITED)):
        user._blocks, user._pages = _Seen(user._blocks), _Seen(user._pages)
        user._channel, user._blocks.pool = _Seen(user._channel), _Seen(user._blocks.pool)
        owners = {"blocks": user._blocks, "pool": user._blocks.pool, "pages": user._pages}
        owners["channel"] = user._channel
        for step in steps:
            owner, method = step.split(".")
            wire.on(owners[owner], method, f"{name}.{step}")
    awaited._writer._access = awaited._pages
    for method in ("promise", "grant", "read"):
        wire.on(kept.tickets, method, f"tickets.{method}")
    wire.on(awaited.pulls, "begin", "pulls.begin")
    for name, engine in (("producer", producer), ("consumer", consumer)):
        wire.on(engine.queue, "add", f"{name}.queue.add")
        wire.on(engine.scheduler.loras, "begin", f"{name}.loras.begin")
        wire.on(engine.scheduler.waiting, "add", f"{name}.waiting.add")


class Story:
    """Legs of two prompts that share a beginning, one of which waits for room and renews its
    lease, and one that is aborted."""

    def __init__(self, wire: Tripwire) -> None:
        network = Network(random.Random(0))
        windows = (None, 9)
        self.producer = VirtualEngine(network, "producer", windows=windows)
        self.consumer = VirtualEngine(network, "consumer", windows=windows)
        watch(wire, self.producer, self.consumer)
        self._next = 0

    def turn(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.producer.network.tick()
            self.producer.turn()
            self.consumer.turn()

    def divided(self, prompt: list[int]) -> int | None:
        """Begin a divided request; None if its prefill leg failed or left nothing."""
        self._next += 2
        self.producer.add(prefill_request(self._next, prompt))
        self.turn(1)
        ticket = self.producer.finished[self._next].ticket
        if ticket is None or not ticket.ticket:
            return None
        self.consumer.add(decode_request(self._next + 1, prompt, ticket))
        return self._next + 1

    def play(self) -> None:
        self.divided(PROMPT)
        self.turn(2)
        self.divided([*PROMPT[:16], *range(60, 80)])
        aborted = self.divided(list(range(50, 90)))
        if aborted is not None:
            self.consumer.abort(aborted)
        self.turn(2)
        taken = self.consumer.scheduler.blocks.pool.allocate(
            self.consumer.scheduler.blocks.pool.num_free
        )
        self.divided(list(range(40, 70)))
        self.turn(6)  # it renews its lease meanwhile
        self.consumer.scheduler.blocks.pool.free(taken)
        self.turn(2)


def calls_of_the_story() -> Counter[str]:
    wire = Tripwire()
    Story(wire).play()
    return wire.calls


_CALLS = calls_of_the_story()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("step", _STEPS)
def test_a_failing_step_gives_back_what_the_leg_has_taken(step: str) -> None:
    assert _CALLS[step], "the story never comes to this step"
    for number in range(1, _CALLS[step] + 1):
        wire = Tripwire((step, number))
        story = Story(wire)
        story.play()
        assert wire.met
        config = story.consumer.config
        untold = max(config.lease_seconds, config.timeout_seconds) + 1
        story.turn(untold if step in _UNTOLD else 1)
        for engine in (story.producer, story.consumer):
            assert engine.held_blocks == 0, (step, number)
            assert engine.desk.open_requests() == ()
            assert engine.transfer.kept.tickets.num_blocks == 0
            assert engine.transfer._awaited.held.num_blocks == 0
        ends = [*story.producer.finished.values(), *story.consumer.finished.values()]
        failed = [end for end in ends if end.reason not in (FinishReason.STOP, FinishReason.LENGTH)]
        refused = [end for end in failed if end.detail != "aborted"]
        enters = step.startswith(("producer.", "consumer.", "tickets.promise", "kept.blocks.num"))
        assert len(refused) <= int(enters), refused
        later = story.divided([3, *PROMPT])
        story.turn(1)
        assert later is not None
        assert story.consumer.outcomes[later][1].result is TransferResult.TRANSFERRED
