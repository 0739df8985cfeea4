"""Prompts of one engine answered by another: of every kind of cache and every sampling control, the
tokens are those of a single engine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atom.model_engine.blocks.block_pool import BlockPool
from atom.model_engine.runner.pages.transferred_pages import TransferredPages
from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from tests.support.engine_core.cache_kinds import KINDS
from tests.support.engine_core.sampling_requests import mixed_requests
from tests.support.engine_core.transfer_pair import BLOCK_TOKENS, TransferPair
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.waiting import HANG_SECONDS

_NEW_TOKENS = 12
_whole = pytest.mark.whole


# Of each kind of these, which requests `make test` asks: every one, or every fourth.
_IN_EVERY_RUN = {"dense": 1, "windows": 4, "mla with an indexer": 4, "states beside windows": 6}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *_IN_EVERY_RUN.items(),
        *(pytest.param(name, 1, marks=_whole) for name in KINDS if _IN_EVERY_RUN.get(name) != 1),
    ],
)
def test_tokens_are_those_of_one_engine(
    name: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    model = kind.checkpoint(tmp_path / "model", monkeypatch)
    pair = TransferPair(model, **kind.options)
    try:
        asked = mixed_requests(pair.producer.config.model.vocab_size, _NEW_TOKENS)
        moved = 0
        for prompt, params in asked[::step]:
            expected = pair.answered_whole(prompt, params)
            note = pair.prefill(prompt, params)
            answer = pair.decode(prompt, params, note)
            assert answer.tokens == expected, (name, params)
            if answer.outcome is not None:
                assert answer.outcome.result is TransferResult.TRANSFERRED, answer
                moved += answer.outcome.tokens
        assert moved > 10 * BLOCK_TOKENS
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


@pytest.fixture
def beside_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies by threads, as on a GPU."""
    monkeypatch.setattr(TransferredPages, "copies_beside_steps", True)


@pytest.mark.usefixtures("beside_steps")
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=_whole)])
@pytest.mark.parametrize(
    "name",
    ["windows", "little memory", pytest.param("states beside windows", marks=_whole)],
)
def test_tokens_are_the_same_if_threads_copy(
    name: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_tokens_are_those_of_one_engine(name, step, tmp_path, monkeypatch)


@pytest.mark.usefixtures("beside_steps")
def test_an_abort_waits_for_pages_that_a_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that were freed earlier could be another request's when a page is written to them."""
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"))
    begun, may_end = threading.Event(), threading.Event()
    writing: list[bool] = []
    write = TransferredPages.write

    def slow(self: TransferredPages, *args: Any) -> None:
        writing.append(True)
        begun.set()
        assert may_end.wait(HANG_SECONDS)
        write(self, *args)
        writing.pop()

    monkeypatch.setattr(TransferredPages, "write", slow)
    free = BlockPool.free

    def freed(self: BlockPool, block_ids: Any) -> None:
        assert not writing, "a block is freed that is being written"
        free(self, block_ids)

    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=9, temperature=0.0)
        note = pair.prefill(prompt, params)
        request = pair.begin_decode(prompt, params, pair.leg_of(note))
        pair.turn_until(begun.is_set, "a page is being written")
        monkeypatch.setattr(BlockPool, "free", freed)
        pair.abort(request)
        threading.Timer(0.05, may_end.set).start()  # the abort waits for it, however late it is
        finished = pair.consumer.sockets.finished
        pair.turn_until(lambda: request.id in finished, "the aborted request ends")
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
        again = pair.decode(prompt, params, note)
        assert again.outcome is not None
        assert again.outcome.reason == "gone", "a ticket is asked for once"
        assert again.tokens == pair.answered_whole(prompt, params)
    finally:
        may_end.set()
        pair.close()


def test_many_legs_at_once_are_answered_as_one_by_one(tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"), num_kv_blocks=64)
    try:
        asked = mixed_requests(pair.producer.config.model.vocab_size, _NEW_TOKENS)
        expected = [pair.answered_whole(prompt, params) for prompt, params in asked]
        begun = []
        for prompt, params in asked[::2]:
            note = pair.prefill(prompt, params)
            begun.append(pair.begin_decode(prompt, params, pair.leg_of(note)))
        answers = [pair.finish(request) for request in begun]
        assert [answer.tokens for answer in answers] == expected[::2]
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


def test_an_abort_on_either_side_frees_both(tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"))
    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=50, temperature=0.0)
        for turns in range(6):
            note = pair.prefill([turns + 10, *prompt], params)
            request = pair.begin_decode([turns + 10, *prompt], params, pair.leg_of(note))
            for _ in range(turns):
                pair.turn()
            pair.abort(request)
            pair.turn_until(
                lambda number=request.id: number in pair.consumer.sockets.finished,  # type: ignore[misc]
                "the aborted request ends",
            )
            pair.turn_until(lambda: pair.held_blocks() == (0, 0), f"after {turns} turns")
    finally:
        pair.close()


@pytest.mark.parametrize(
    ("options", "difference", "remedy"),
    [
        (
            {"kv_cache_dtype": "fp8"},
            "its kv_cache_dtype is 'float32' and ours 'float8_e4m3fn'",
            "--kv-cache-dtype",
        ),
        ({"block_size": 32}, "its block_size is '16' and ours '32'", "--block-size"),
        ({"reproducible": True}, "its reproducible is 'False' and ours 'True'", "--reproducible"),
    ],
)
def test_engines_of_other_layouts_name_the_field_and_compute(
    options: dict[str, Any],
    difference: str,
    remedy: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make_tiny_checkpoint(tmp_path / "model")
    pair = TransferPair(model)
    other = TransferPair(model, **options)
    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=8, temperature=0.0)
        note = pair.prefill(prompt, params)
        answer = other.decode(prompt, params, note)
        expected = other.answered_whole(prompt, params)
    finally:
        pair.close()
        other.close()
    assert answer.outcome is not None
    assert answer.outcome.result is TransferResult.RECOMPUTED
    assert answer.outcome.reason == "incompatible"
    assert difference in caplog.text
    assert caplog.text.count(remedy) == 2, "both sides name it"
    assert caplog.text.count("refused the consumer") == 1
    assert answer.tokens == expected


def test_a_leg_with_an_unknown_ticket_is_computed(tmp_path: Path) -> None:
    pair = TransferPair(make_tiny_checkpoint(tmp_path / "model"))
    try:
        prompt, params = list(range(10, 110)), SamplingParams(max_tokens=8, temperature=0.0)
        note = msgspec.structs.replace(pair.prefill(prompt, params), ticket="0" * 32)
        answer = pair.decode(prompt, params, note)
        assert answer.outcome is not None
        assert answer.outcome.reason == "gone"
        assert answer.tokens == pair.answered_whole(prompt, params)
    finally:
        pair.close()
