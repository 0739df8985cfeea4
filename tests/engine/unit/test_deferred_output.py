"""With the host a step behind, the same tokens come out: under preemption, stop and abort."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.step_pipeline import StepPipeline
from tests.support.builders_engine import EOS, make_request, make_scheduler


@dataclass
class HashModel:
    """Draws token = f(request, position): what a deterministic model would, however it is batched.

    Checks that no row computes a token it was not given: a decode's input must be the token that
    this model itself sampled last for the request.
    """

    lengths: dict[int, int] = field(default_factory=dict)

    def submit(self, batch: ScheduledBatch) -> ScheduledBatchOutput:
        for row in batch.new_rows:
            self.lengths[row.request_id] = len(row.token_ids)
            for at in range(row.token_ids.size):
                expected = token_at(row.request_id, at)
                assert expected is None or row.token_ids[at] == expected, "a placeholder came back"
        for request, computed in zip(
            batch.req_ids[: batch.num_decodes], batch.num_computed_tokens, strict=False
        ):
            assert self.lengths[int(request)] == computed + 1, "a decode without its input token"
        sampled = batch.req_ids[batch.samples].tolist()
        ends = batch.context_lens[batch.samples].tolist()
        for request, end in zip(sampled, ends, strict=True):
            self.lengths[request] = end + 1
        tokens = [generated(request, end) for request, end in zip(sampled, ends, strict=True)]
        return ScheduledBatchOutput(token_ids=np.array(tokens, dtype=np.int32))

    def collect(self, handle: ScheduledBatchOutput) -> ScheduledBatchOutput:
        return handle


def generated(request: int, position: int) -> int:
    """Token at this position; now and then the end token."""
    mixed = (request * 7919 + position * 104729) % 1009
    return EOS if mixed % 17 == 0 else 100 + mixed


def token_at(request: int, position: int) -> int | None:
    """What must stand there, None within the prompt."""
    return generated(request, position) if position >= PROMPTS[request] else None


PROMPTS: dict[int, int] = {}


def run(
    depth: int, loads: list[tuple[int, int]], num_blocks: int, policy: str, aborted: set[int]
) -> tuple[dict[int, list[int]], int]:
    scheduler = make_scheduler(num_blocks=num_blocks, policy=policy, max_num_seqs=6)
    pipeline = StepPipeline(scheduler, HashModel(), depth=depth)
    PROMPTS.clear()
    for request, (length, new_tokens) in enumerate(loads):
        PROMPTS[request] = length
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
    assert scheduler.blocks.pool.num_held == 0
    return tokens, scheduler.stats().preemptions_total


LOADS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(
    loads=LOADS, num_blocks=st.integers(16, 40), policy=st.sampled_from(["mixed", "prefill_first"])
)
def test_same_tokens_with_the_host_a_step_behind(loads, num_blocks, policy) -> None:
    at_once, _ = run(0, loads, num_blocks, policy, aborted=set())
    behind, _ = run(1, loads, num_blocks, policy, aborted=set())
    assert behind == at_once
    for request, (length, new_tokens) in enumerate(loads):
        got = at_once[request]
        assert got == [generated(request, length + i) for i in range(len(got))]
        assert len(got) == new_tokens or got[-1] == EOS


@settings(max_examples=30, deadline=None)
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
