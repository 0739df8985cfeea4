"""What the scheduler remembers of a request whatever happens to it, and what it counts."""

from __future__ import annotations

import pytest

from atom.model_engine.sequence import SequenceStatus
from tests.support.engine_core.builders_engine import EOS, FakeModel, make_request, make_scheduler
from tests.support.engine_core.scheduler_integrity import check_integrity


def preempted_model(**options: object) -> FakeModel:
    """Two requests in memory for one and a half."""
    model = FakeModel(make_scheduler(num_blocks=16, max_num_seqs=2, **options))  # type: ignore[arg-type]
    for number in range(2):
        model.scheduler.add(make_request(number, [10 + number] * 20, max_tokens=20))
    model.run()
    assert model.scheduler.stats().preemptions_total > 0
    return model


def test_a_request_keeps_the_seed_that_was_drawn_for_it() -> None:
    model = preempted_model(prefix_caching=False)
    rows = [row for batch in model.batches for row in batch.new_rows]
    assert len(rows) > 2
    assert len({(row.request_id, row.seed) for row in rows}) == 2


def test_what_a_preempted_request_finds_of_itself_is_not_called_cached() -> None:
    model = preempted_model()
    assert [row.num_cached_tokens for row in model.finished.values()] == [0, 0]


def test_a_conversation_that_grows_is_found_again_turn_after_turn() -> None:
    """Blocks of 4: each turn finds all whole blocks of the one before, its answer included."""
    model = FakeModel(make_scheduler())
    said = list(range(10, 19))
    cached = []
    for turn in range(4):
        model.scheduler.add(make_request(turn, said, max_tokens=4))
        model.run()
        cached.append(model.finished[turn].num_cached_tokens)
        said = [*said, *model.tokens[turn], 100 + turn]
    # 9, 14, 19 and 24 tokens; of an answer the last token is never computed.
    assert cached == [0, 12, 16, 20]


def test_a_prompt_whose_tokens_are_scored_is_computed_anew() -> None:
    model = FakeModel(make_scheduler())
    model.scheduler.add(make_request(0, 12, max_tokens=1))
    model.run()
    model.scheduler.add(make_request(1, 12, max_tokens=1, prompt_logprobs=0))
    batch = model.step()
    assert batch is not None
    assert batch.num_computed_tokens.tolist() == [0]
    (score,) = batch.prompt_scores
    assert (score.row, score.first, score.count) == (0, 0, 11)


def test_prompts_that_the_cache_may_not_spare_are_not_looked_up() -> None:
    model = FakeModel(make_scheduler())
    model.scheduler.add(make_request(0, 12, max_tokens=1, prompt_logprobs=0))
    model.run()
    assert model.scheduler.stats().cache_requests_total == 0
    without = FakeModel(make_scheduler(prefix_caching=False))
    without.scheduler.add(make_request(0, 12, max_tokens=1))
    without.run()
    assert without.scheduler.stats().cache_full_tokens_total == 0


def test_when_the_engine_exits_everybody_gives_back_what_it_holds() -> None:
    model = FakeModel(make_scheduler(max_num_seqs=1))
    for number in range(3):
        model.scheduler.add(make_request(number, 6, max_tokens=1 if number == 0 else 9))
    model.step()
    model.step()
    ended = [*model.scheduler.waiting, *filter(None, model.scheduler.rows.sequences)]
    assert {sequence.status for sequence in ended} == {
        SequenceStatus.WAITING,
        SequenceStatus.RUNNING,
    }
    assert model.scheduler.exit_engine() == 2
    assert {sequence.status for sequence in ended} == {SequenceStatus.FINISHED}
    assert model.scheduler.blocks.pool.num_referenced == 0
    assert not model.scheduler.has_work()
    check_integrity(model.scheduler)


@pytest.mark.parametrize(
    ("stops", "max_tokens", "detail"),
    [((EOS,), 9, "eos"), ((EOS,), 1, "eos"), ((), 1, "eos")],
    ids=["also a stop token", "all three at once", "also the last token"],
)
def test_the_first_of_several_reasons_is_told(stops, max_tokens, detail) -> None:
    model = FakeModel(make_scheduler(), token=EOS)
    model.scheduler.add(make_request(0, 5, max_tokens=max_tokens, stop_token_ids=stops))
    model.run()
    assert model.finished[0].detail == detail


def test_a_stop_token_counts_before_the_length() -> None:
    model = FakeModel(make_scheduler(), token=9)
    model.scheduler.add(make_request(0, 5, max_tokens=1, stop_token_ids=(9,)))
    model.run()
    assert (model.finished[0].reason, model.finished[0].detail) == ("stop", "stop_9")


def test_the_longest_rows_come_first() -> None:
    model = FakeModel(make_scheduler())
    for number, length in enumerate((3, 9, 6)):
        model.scheduler.add(make_request(number, length, max_tokens=3))
    model.step()
    batch = model.step()
    assert batch is not None
    assert batch.req_ids.tolist() == [1, 2, 0]


def test_the_counts_are_of_what_happened() -> None:
    model = FakeModel(make_scheduler(max_num_seqs=1))
    model.clock = 10.0
    for number in range(2):
        model.scheduler.add(make_request(number, 12, max_tokens=2, arrive_time=10.0))
    model.step()
    stats = model.scheduler.stats()
    assert (stats.requests_running, stats.requests_waiting) == (1, 1)
    assert stats.kv_blocks_used == 3
    model.run()
    stats = model.scheduler.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (24, 8)
    assert (stats.cache_requests_total, stats.cache_full_tokens_total) == (2, 24)
    assert (stats.generation_tokens_total, stats.steps_total) == (4, 4)
    assert (stats.requests_running, stats.kv_blocks_used, stats.kv_blocks_indexed) == (0, 0, 3)
    # The first began in the step at 11 s, the second when the first had ended.
    assert [row.queue_seconds for row in model.finished.values()] == [1.0, 3.0]
