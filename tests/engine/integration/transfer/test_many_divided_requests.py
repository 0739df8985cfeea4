"""Thousands of drawn requests, many at once, divided over two engines: the tokens are those of one
engine, whatever is cached where, and no block is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import PrefillLeg, TransferResult
from atom.model_engine.wire.engine_protocol import AddBody, encode
from atom.sampling_params import SamplingParams
from tests.support.engine_core.cache_kinds import KINDS
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.engine_core.wired_core import WiredCore

_AT_ONCE = 16
_NEW_TOKENS = 12  # the least of one of the controls
_FEW, _MANY = 96, 640  # of each kind of cache: sixteen make ten thousand
_FEW_OF = ("dense", "mla", "states beside windows")


class Rounds:
    """Draws requests whose prompts share beginnings, and sends them in rounds."""

    def __init__(self, pair: TransferPair, seed: int) -> None:
        self._pair = pair
        self._dice = random.Random(seed)
        vocabulary = pair.producer.config.model.vocab_size
        self._params = [params for _, params in mixed_requests(vocabulary, _NEW_TOKENS)]
        self._stems = [self._tokens(60) for _ in range(5)]

    def _tokens(self, count: int) -> list[int]:
        return [self._dice.randrange(3, 200) for _ in range(count)]

    def _drawn(self) -> tuple[list[int], SamplingParams, str]:
        dice = self._dice
        stem = dice.choice(self._stems)[: dice.randrange(61)]
        prompt = stem + self._tokens(dice.randrange(1, 40))
        return prompt, dice.choice(self._params), dice.choice(("", "", "tenant"))

    def _run(self, core: WiredCore, requests: list[Request]) -> None:
        core.send(*encode(AddBody(requests)))
        finished = core.sockets.finished
        ids = [each.id for each in requests]
        self._pair.turn_until(lambda: all(number in finished for number in ids), "a round ends")

    def play(self) -> list[TransferResult]:
        """One round; returns the results of its transfers."""
        pair = self._pair
        asked = [self._drawn() for _ in range(_AT_ONCE)]
        wholes = [
            pair.request(prompt, params, cache_salt=f"whole {salt}")
            for prompt, params, salt in asked
        ]
        one = SamplingParams(max_tokens=1)
        legs = [
            pair.request(prompt, one, PrefillLeg(), cache_salt=salt) for prompt, _, salt in asked
        ]
        self._run(pair.producer, [*wholes, *legs])
        notes = [pair.producer.sockets.finished[leg.id][0].ticket for leg in legs]
        decodes = [
            pair.request(
                prompt, params, None if note is None else pair.leg_of(note), cache_salt=salt
            )
            for (prompt, params, salt), note in zip(asked, notes, strict=True)
        ]
        self._run(pair.consumer, decodes)
        expected, given = pair.producer.sockets.tokens, pair.consumer.sockets.tokens
        for whole, decode in zip(wholes, decodes, strict=True):
            assert given[decode.id] == expected[whole.id], decode
        transfers = pair.consumer.sockets.transfers
        return [transfers[each.id].result for each in decodes if each.id in transfers]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("windows", _FEW),
        *(pytest.param(name, _FEW, marks=pytest.mark.whole) for name in _FEW_OF),
        *(pytest.param(name, _MANY, marks=pytest.mark.slow) for name in KINDS),
    ],
)
def test_drawn_requests_are_answered_as_by_one_engine(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    model = kind.checkpoint(tmp_path / "model", monkeypatch)
    pair = TransferPair(model, **{"num_kv_blocks": 400, **kind.options})
    try:
        rounds = Rounds(pair, seed=count)
        results = [result for _ in range(count // _AT_ONCE) for result in rounds.play()]
        transferred = results.count(TransferResult.TRANSFERRED)
        # In little memory, tickets take their share of it at once, and further legs are refused.
        assert transferred > count / (8 if "num_kv_blocks" in kind.options else 4)
        assert set(results) <= {TransferResult.TRANSFERRED, TransferResult.LOCAL}
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()
