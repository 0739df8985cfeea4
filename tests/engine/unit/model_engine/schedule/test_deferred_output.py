"""With the host a step behind, the same tokens come out: under preemption, stop and abort."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from atom.model_engine.step_pipeline import StepPipeline
from tests.support.engine_core.builders_engine import EOS, make_request, make_scheduler
from tests.support.engine_core.paged_model import PagedModel, drawn_token
from tests.support.random_search import examples


def run(
    depth: int, loads: list[tuple[int, int]], num_blocks: int, policy: str, aborted: set[int]
) -> tuple[dict[int, list[int]], int]:
    scheduler = make_scheduler(num_blocks=num_blocks, policy=policy, max_num_seqs=6)
    blocks = scheduler.blocks
    model = PagedModel(blocks.block_size, num_blocks, scheduled_rows=scheduler.rows)
    pipeline = StepPipeline(scheduler, model, depth=depth)
    for request, (length, new_tokens) in enumerate(loads):
        scheduler.add(make_request(request, length, max_tokens=new_tokens))
    tokens: dict[int, list[int]] = {}
    for step in range(5000):
        if not pipeline.has_work():
            break
        if step == 5:
            scheduler.abort(aborted)
        result = pipeline.step(float(step))
        if result is None:
            continue
        for request, token in zip(
            result.request_ids.tolist(), result.token_ids.tolist(), strict=True
        ):
            tokens.setdefault(request, []).append(token)
        scheduler.blocks.pool.check_integrity()
    assert not pipeline.has_work(), "no progress"
    assert scheduler.blocks.pool.num_referenced == 0
    return tokens, scheduler.stats().preemptions_total


LOADS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=10)


@settings(max_examples=examples(24), deadline=None)
@given(
    loads=LOADS, num_blocks=st.integers(16, 40), policy=st.sampled_from(["mixed", "prefill_first"])
)
def test_same_tokens_with_the_host_a_step_behind(loads, num_blocks, policy) -> None:
    at_once, _ = run(0, loads, num_blocks, policy, aborted=set())
    behind, _ = run(1, loads, num_blocks, policy, aborted=set())
    assert behind == at_once
    for request, (length, new_tokens) in enumerate(loads):
        got = at_once[request]
        assert got == [drawn_token(request, length + i) for i in range(len(got))]
        assert len(got) == new_tokens or got[-1] == EOS


@settings(max_examples=examples(12), deadline=None)
@given(loads=LOADS, num_blocks=st.integers(16, 40), data=st.data())
def test_abort_with_a_token_outstanding_leaves_the_others_alone(loads, num_blocks, data) -> None:
    aborted = data.draw(st.sets(st.integers(0, len(loads) - 1)))
    whole, _ = run(0, loads, num_blocks, "mixed", aborted=set())
    partly, _ = run(1, loads, num_blocks, "mixed", aborted=aborted)
    for request, tokens in whole.items():
        got = partly.get(request, [])
        if request not in aborted:
            assert got == tokens
        assert got == tokens[: len(got)]


def test_preemption_waits_for_the_outstanding_token() -> None:
    loads = [(16, 16)] * 4
    tokens, preemptions = run(1, loads, 16, "mixed", aborted=set())
    assert preemptions > 0
    assert sorted(tokens) == [0, 1, 2, 3]


def test_a_block_for_a_row_that_makes_room_in_the_same_step_is_not_appended() -> None:
    """Both rows need a block, one is left; who gets it first is due last and has to go."""
    scheduler = make_scheduler(num_blocks=15, max_model_len=60, prefix_caching=False)
    model = PagedModel(4, 15, scheduled_rows=scheduler.rows)
    pipeline = StepPipeline(scheduler, model, depth=0)
    scheduler.add(make_request(0, 27, max_tokens=8, priority=9, ignore_eos=True))
    pipeline.step(0.0)
    scheduler.add(make_request(1, 28, max_tokens=8, ignore_eos=True))
    pipeline.step(1.0)
    assert scheduler.num_running == 2
    (slot,) = [s.slot for s in scheduler.rows.sequences if s is not None and s.id == 1]
    pipeline.step(2.0)
    assert scheduler.stats().preemptions_total == 1
    assert model.batches[-1].block_appends[:, :2].tolist() == [[slot, 7]]
    while pipeline.has_work():
        pipeline.step(3.0)
    assert scheduler.blocks.pool.num_referenced == 0
