"""The scheduler under anything that can happen: arrivals, aborts, ends, preemptions, in any order.

A model-free executor checks that what each step computes is what the requests need (PagedModel);
the machine checks budgets, order and books after each step, and that everything ends.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.step_pipeline import StepPipeline
from atom.sizing import CacheGroup
from atom.sizing.mask_rule import sliding_window
from tests.support.engine_core.builders_engine import EOS, make_request, make_scheduler
from tests.support.engine_core.paged_model import PagedModel, drawn_token
from tests.support.engine_core.scheduler_integrity import check_integrity
from tests.support.random_search import examples

MAX_MODEL_LEN = 48
# What each group of layers sees: everything in one, one window, both, several of both.
WINDOWS: list[tuple[int | None, ...]] = [
    (None,), (None,), (5,), (None, 1), (None, 6), (4, None, 17), (None, 3, None, 9), (2, 64)
]  # fmt: skip
STOP_TOKEN = 150


@dataclass(frozen=True)
class Arrival:
    """ends: the tokens that end the answer."""

    prompt: list[int]
    new_tokens: int
    priority: int
    ends: frozenset[int]
    salt: str
    client: str


# Prompts begin alike, so that the prefix cache has something to share.
ARRIVALS = st.builds(
    lambda kind, shared, own, new_tokens, priority, ends, salt, client: Arrival(
        [10 + kind] * shared + list(range(50, 50 + own)), new_tokens, priority, ends, salt, client
    ),
    kind=st.integers(0, 1),
    shared=st.integers(0, 20),
    own=st.integers(1, 10),
    new_tokens=st.integers(1, 16),
    priority=st.integers(-3, 3),
    ends=st.frozensets(st.sampled_from([EOS, STOP_TOKEN])),
    salt=st.sampled_from(["", "", "a"]),
    client=st.sampled_from(["", "", "one", "two/x", "two/y"]),
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(["mixed", "prefill_first"]),
        depth=st.integers(0, 1),
        spare_blocks=st.integers(0, 8),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(5, 40),
        threshold=st.sampled_from([0, 1, 7]),
        delay_factor=st.sampled_from([0.0, 2.0]),
        prefix_caching=st.sampled_from([True, True, False]),
        drafts=st.sampled_from([0, 0, 1, 3]),
        block_size=st.sampled_from([4, 4, 1, 16]),
        windows=st.sampled_from(WINDOWS),
        fairness=st.sampled_from(["clients", "clients", "off"]),
    )
    def build(
        self, policy, depth, spare_blocks, max_num_seqs, budget, threshold, delay_factor,
        prefix_caching, drafts, block_size, windows, fairness,
    ) -> None:  # fmt: skip
        groups = [CacheGroup((), sliding_window(window)) for window in windows]
        num_blocks = spare_blocks + sum(
            group.blocks(MAX_MODEL_LEN, block_size, drafts) for group in groups
        )
        self.block_size, self.windows = block_size, windows
        # Drafts that a row has blocks for, with those that a step in flight was thought to keep.
        self.most_ahead = drafts + depth * (drafts + 1) * (drafts > 0)
        self.policy, self.budget, self.threshold = policy, budget, threshold
        self.max_num_seqs = max_num_seqs
        self.scheduler = make_scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            policy=policy,
            threshold=threshold,
            delay_factor=delay_factor,
            prefix_caching=prefix_caching,
            num_speculative_tokens=drafts,
            windows=windows,
            fairness=fairness,
        )
        self.model = PagedModel(
            block_size,
            num_blocks,
            scheduled_rows=self.scheduler.rows,
            num_drafts=drafts,
            windows=windows,
            max_model_len=MAX_MODEL_LEN,
        )
        self.pipeline = StepPipeline(self.scheduler, self.model, depth=depth)
        self.numbers = itertools.count()
        self.clock = 0.0
        self.asked: dict[int, Arrival] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, str] = {}

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=4))
    def arrive(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            number = next(self.numbers)
            self.asked[number] = arrival
            self.scheduler.add(
                make_request(
                    number,
                    arrival.prompt,
                    max_tokens=arrival.new_tokens,
                    arrive_time=self.clock,
                    priority=arrival.priority,
                    ignore_eos=EOS not in arrival.ends,
                    stop_token_ids=tuple(arrival.ends - {EOS}),
                    cache_salt=arrival.salt,
                    client_id=arrival.client,
                )
            )

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def disturb(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 3)) == 0:
            self.scheduler.blocks.reset_prefix_cache()
        else:
            chosen = data.draw(st.sampled_from(sorted(self.asked)))
            for row in self.scheduler.abort([chosen]):
                assert row.reason == "abort"
                self._end(row.request_id, row.reason)
        check_integrity(self.scheduler)

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        for _ in range(3000):
            if not self.pipeline.has_work():
                break
            self._step()
        assert not self.pipeline.has_work(), "no progress"
        assert sorted(self.ended) == sorted(self.asked), "a request never ended"
        assert self.scheduler.blocks.pool.num_referenced == 0
        for request, reason in self.ended.items():
            self._check_answer(request, reason)

    def _step(self) -> None:
        self.clock += 1.0
        able = self._rows_that_can_decode()
        before = len(self.model.batches)
        result = self.pipeline.step(self.clock)
        if len(self.model.batches) > before:
            self._check_batch(self.model.batches[-1], able)
        check_integrity(self.scheduler)
        self._check_windows()
        self._check_salts()
        if result is None:
            return
        for request, run in result.runs():
            assert request not in self.ended, "a token after the end"
            self.tokens.setdefault(request, []).extend(run)
        for row in result.finished:
            self._end(row.request_id, row.reason)
        self._check_counts()

    def _check_counts(self) -> None:
        """With no step in flight what is counted is what there is."""
        if self.scheduler._outstanding:
            return
        rows = self.scheduler.rows
        for sequence in filter(None, rows.sequences):
            got = self.tokens.get(sequence.id, [])
            assert rows.num_tokens[sequence.slot] == sequence.num_prompt_tokens + len(got)
            answer = rows.token_ids[sequence.slot, sequence.num_prompt_tokens :]
            assert answer[: len(got)].tolist() == got

    def _check_windows(self) -> None:
        """With no step in flight a row holds no more of a group than its window touches."""
        if self.scheduler._outstanding:
            return
        rows = self.scheduler.rows
        for sequence in filter(None, rows.sequences):
            length = int(rows.num_computed[sequence.slot])
            for group, table, first in zip(
                self.scheduler.blocks.groups, sequence.block_tables, sequence.first_blocks,
                strict=True,
            ):  # fmt: skip
                if group.window is not None:
                    assert first == max(first, 0, (length - group.window + 1) // self.block_size)
                    most = group.blocks(1 << 20, self.block_size, self.most_ahead)
                    assert len(table) - first <= most

    def _check_salts(self) -> None:
        """Only requests of one salt hold the same block."""
        salts: dict[int, str] = {}
        for sequence in filter(None, self.scheduler.rows.sequences):
            for table, first in zip(sequence.block_tables, sequence.first_blocks, strict=True):
                for block in table[first:]:
                    assert salts.setdefault(block, sequence.cache_salt) == sequence.cache_salt

    def _rows_that_can_decode(self) -> set[tuple[int, int]]:
        """(request, tokens it entered its slot with) of the rows whose next input was sampled."""
        rows = self.scheduler.rows
        able = (rows.num_computed >= rows.num_given) & (rows.num_tokens <= rows.last_position)
        return {entry for entry in self._entered() if able[self._slot_of(entry[0])]}

    def _entered(self) -> set[tuple[int, int]]:
        """A row that is preempted and comes back at once comes back with more tokens."""
        rows = self.scheduler.rows
        return {(s.id, int(rows.num_given[s.slot])) for s in rows.sequences if s is not None}

    def _slot_of(self, request: int) -> int:
        return self.scheduler.rows.request_ids.tolist().index(request)

    def _check_batch(self, batch: ScheduledBatch, able: set[tuple[int, int]]) -> None:
        assert 0 < batch.total_tokens_num <= self.budget
        assert len(batch.slots) <= self.max_num_seqs
        chunks = batch.num_scheduled_tokens[batch.num_decodes :]
        assert (chunks > 0).all()
        if self.threshold:
            assert (chunks <= self.threshold).all()
        decoding = set(batch.req_ids[: batch.num_decodes].tolist())
        if self.policy == "prefill_first":
            assert not (decoding and len(chunks)), "decodes and prompts in one batch"
        else:
            stayed = {request for request, _ in able & self._entered()}
            assert decoding >= stayed, "a decode was left out"

    def _end(self, request: int, reason: str) -> None:
        assert request not in self.ended, "it ended twice"
        self.ended[request] = reason

    def _check_answer(self, request: int, reason: str) -> None:
        asked, got = self.asked[request], self.tokens.get(request, [])
        expected = [drawn_token(request, len(asked.prompt) + i) for i in range(asked.new_tokens)]
        ending = (i + 1 for i, token in enumerate(expected) if token in asked.ends)
        length = next(ending, asked.new_tokens)
        if reason == "abort":
            assert got == expected[: len(got)]
            assert len(got) <= length
        else:
            assert got == expected[:length]
            assert reason == ("stop" if got[-1] in asked.ends else "length")


SchedulerMachine.TestCase.settings = settings(
    max_examples=examples(16, more=100), stateful_step_count=30, deadline=None
)
TestSchedulerUnderAnything = SchedulerMachine.TestCase
