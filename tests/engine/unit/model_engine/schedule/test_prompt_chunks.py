"""A short prompt does not wait for the end of another client's long ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.model_engine.schedule.prompt_chunks import share_tokens
from tests.support.engine_core.builders_engine import FakeModel, make_request, make_scheduler

PROMPTS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), max_size=8)


@given(PROMPTS, st.integers(0, 80))
def test_a_step_gives_all_its_tokens_and_half_of_them_by_age(
    prompts: list[tuple[int, str]], budget: int
) -> None:
    lefts, clients = [left for left, _ in prompts], [client for _, client in prompts]
    counts = share_tokens(lefts, clients, budget)
    assert sum(counts) == min(budget, sum(lefts))
    assert all(0 <= count <= left for count, left in zip(counts, lefts, strict=True))
    if lefts:
        assert counts[0] >= min(lefts[0], budget - budget // 2), "the oldest gets its half"


@given(PROMPTS, st.integers(0, 80))
def test_prompts_of_one_client_go_by_age(prompts: list[tuple[int, str]], budget: int) -> None:
    lefts = [left for left, _ in prompts]
    counts = share_tokens(lefts, [], budget)
    assert counts == share_tokens(lefts, ["a"] * len(lefts), budget)
    for index, count in enumerate(counts):
        assert count == min(lefts[index], max(budget - sum(lefts[:index]), 0))


@pytest.mark.parametrize("others", [1, 20])
@pytest.mark.parametrize(
    "options",
    [{}, {"policy": "prefill_first"}, {"windows": (None, 8)}, {"num_speculative_tokens": 2}],
    ids=str,
)
def test_a_newcomer_begins_beside_long_prompts(options: dict, others: int) -> None:
    """One long prompt, or as many as there are slots for, take 12 steps each."""
    scheduler = make_scheduler(
        num_blocks=400, max_num_seqs=24, max_num_batched_tokens=40, max_model_len=512, **options
    )
    model = FakeModel(scheduler)
    for number in range(others):
        prompt = [10 + number] * 480
        scheduler.add(make_request(number, prompt, max_tokens=4, client_id="long"))
    for _ in range(3):
        model.step()
    scheduler.add(make_request(100, 5, max_tokens=1, client_id="short", arrive_time=model.clock))
    model.step()
    assert 100 in model.finished
    assert not model.tokens.get(0), "the long prompt is not at its end"
    model.run(limit=5000)
    assert sorted(model.finished) == [*range(others), 100]


def test_ever_new_short_prompts_do_not_stop_a_long_one() -> None:
    scheduler = make_scheduler(
        num_blocks=400, max_num_seqs=24, max_num_batched_tokens=40, max_model_len=512
    )
    model = FakeModel(scheduler)
    scheduler.add(make_request(0, [10] * 400, max_tokens=1, client_id="long"))
    for number in range(1, 400):
        scheduler.add(
            make_request(
                number, [10 + number % 9] * 30, max_tokens=1, client_id=f"n{number}",
                arrive_time=model.clock,
            )
        )  # fmt: skip
        model.step()
        if 0 in model.finished:
            break
    assert number <= 2 * 400 / 40 + 2, "it has half of each step at least"
