"""A fault at every step between two engines: each request is answered as by one engine, in time,
and both engines hold no block soon after."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from atom.model_engine.transfer_legs import TransferResult
from atom.model_engine.wire.engine_protocol import AddBody, encode
from atom.sampling_params import SamplingParams
from tests.support.engine_core.frame_proxy import Action, Fault, FrameProxy
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.random_search import FRESH_SEEDS

_TIMEOUT, _LEASE = 2.0, 3.0
# Of a machine that computes other tests as well: a turn of an engine may come late.
_SLACK = 20.0
_STEPS = (
    ("hello", 0),
    ("welcome", 0),
    ("want", 0),
    ("page", 0),
    ("page", 3),
    ("have", 0),
    ("done", 0),
)
_DRAWN = 200 if FRESH_SEEDS else 6


@dataclass
class Bench:
    pair: TransferPair
    prompts: int = 0

    def prompt(self) -> list[int]:
        """A prompt that neither engine has seen."""
        self.prompts += 1
        dice = random.Random(self.prompts)
        return [dice.randrange(10, 200) for _ in range(100)]


_PARAMS = SamplingParams(max_tokens=6, temperature=0.0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    model = make_tiny_checkpoint(tmp_path_factory.mktemp("faults") / "model")
    transfer: dict[str, Any] = {"timeout_seconds": _TIMEOUT, "lease_seconds": _LEASE}
    pair = TransferPair(model, transfer=transfer)
    yield Bench(pair)
    pair.close()


def answered(bench: Bench, fault: Fault) -> tuple[TransferResult, str]:
    """How a request ends whose frames meet a fault; whole, and in time."""
    pair, prompt = bench.pair, bench.prompt()
    whole = pair.request(prompt, _PARAMS, cache_salt="whole")
    pair.producer.send(*encode(AddBody([whole])))
    finished = pair.producer.sockets.finished
    pair.turn_until(lambda: whole.id in finished, "the whole request ends")
    note = pair.prefill(prompt, _PARAMS)
    with FrameProxy((note.host, note.port), fault) as proxy:
        pair.place = proxy.address
        answer = pair.decode(prompt, _PARAMS, note)
        assert answer.outcome is not None
        assert answer.tokens == pair.producer.sockets.tokens[whole.id], fault
        assert answer.outcome.seconds < _TIMEOUT + 1, answer.outcome
        began = time.monotonic()
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
        assert time.monotonic() - began < _LEASE + 1 + _SLACK
        assert proxy.met, "the fault never happened"
    return answer.outcome.result, answer.outcome.reason


@pytest.mark.singles
@pytest.mark.parametrize("step", _STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
@pytest.mark.parametrize("action", list(Action))
def test_every_step_survives_every_fault(
    bench: Bench, action: Action, step: tuple[str, int]
) -> None:
    fault = Fault(step[0], action, step[1])
    result, reason = answered(bench, fault)
    harmless = fault.kind == "done" or fault.action in (Action.LATE, Action.DOUBLE, Action.SWAP)
    if fault.kind in ("page", "have") and harmless:
        assert result is TransferResult.TRANSFERRED, reason
    assert result in (TransferResult.TRANSFERRED, TransferResult.RECOMPUTED)
    if result is TransferResult.RECOMPUTED:
        assert reason


@pytest.mark.parametrize("seed", range(_DRAWN))
def test_drawn_faults_under_load(bench: Bench, seed: int) -> None:
    """Several requests through one connection, one of whose frames meets a fault."""
    dice = random.Random(seed)
    pair, kinds = bench.pair, ("want", "page", "have", "done", "renew")
    prompts = [bench.prompt() for _ in range(4)]
    wholes = [pair.request(prompt, _PARAMS, cache_salt="whole") for prompt in prompts]
    pair.producer.send(*encode(AddBody(wholes)))
    finished = pair.producer.sockets.finished
    pair.turn_until(lambda: all(each.id in finished for each in wholes), "the whole requests end")
    notes = [pair.prefill(prompt, _PARAMS) for prompt in prompts]
    fault = Fault(dice.choice(kinds), dice.choice(list(Action)), dice.randrange(8))
    with FrameProxy((notes[0].host, notes[0].port), fault) as proxy:
        pair.place = proxy.address
        begun = [
            pair.begin_decode(prompt, _PARAMS, pair.leg_of(note))
            for prompt, note in zip(prompts, notes, strict=True)
        ]
        answers = [pair.finish(request) for request in begun]
        tokens = pair.producer.sockets.tokens
        assert [answer.tokens for answer in answers] == [tokens[each.id] for each in wholes]
        for answer in answers:
            assert answer.outcome is not None
            assert answer.outcome.seconds < _TIMEOUT + 1, (fault, answer.outcome)
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
