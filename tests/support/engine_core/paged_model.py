"""PagedModel: an executor without a model that notices every wrong block, token and position.

Its KV cache holds, per cache slot, a hash of the group of layers and of all tokens up to there:
what attention would see. A step fails if what a row sees of its history in the cache, in each group
of layers as far back as its window, is not the row's own tokens, if a decode's input was never
sampled, or if a token is computed twice or left out. The token it draws is a function of the
request and the position alone, as a deterministic model's is of the history. Drafts are right as
far as `held` says and wrong behind that; a row gets a token for each that is right, and one more,
wherever the host believes the row to stand. Shown the scheduler's rows, the model also compares
what it was told of them with what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.wire.logprob_rows import LogprobRows
from tests.support.engine_core.builders_engine import EOS

_EMPTY = 0


def drawn_token(request: int, position: int) -> int:
    """The token of this request at this position; now and then the end token."""
    mixed = (request * 7919 + position * 104729) % 1009
    return EOS if mixed % 17 == 0 else 100 + mixed


def held_drafts(request: int, position: int, drafts: int) -> int:
    """How many of the drafts from this position on are right: none, all, and all between."""
    return ((request * 31 + position * 17) % 97) % (drafts + 1)


@dataclass
class _Row:
    request: int
    tokens: list[int]
    tables: list[list[int]]
    wanted_logprobs: int | None


@dataclass
class PagedModel:
    block_size: int
    num_blocks: int
    rows: dict[int, _Row] = field(default_factory=dict)  # by slot
    batches: list[ScheduledBatch] = field(default_factory=list)
    scheduled_rows: RowTable | None = None  # the scheduler's, as they are when a batch comes
    num_drafts: int = 0  # per decode, at most
    draw: Callable[[int, int], int] = drawn_token  # the token of a request at a position
    held: Callable[[int, int, int], int] = held_drafts
    windows: tuple[int | None, ...] = (None,)  # what each group of layers sees
    max_model_len: int = 64
    num_given: list[int] = field(default_factory=list)  # tokens of each step

    def __post_init__(self) -> None:
        self.cache = [_EMPTY] * (self.num_blocks * self.block_size)

    def submit(self, batch: ScheduledBatch) -> ScheduledBatchOutput:
        self.batches.append(batch)
        for new in batch.new_rows:
            tokens = new.token_ids.tolist()
            for position in range(new.num_prompt_tokens, len(tokens)):
                expected = self.draw(new.request_id, position)
                assert tokens[position] == expected, "a placeholder came back"
            tables = list(map(list, new.block_ids))
            self.rows[new.slot] = _Row(new.request_id, tokens, tables, new.params.logprobs)
        for slot, group, index, block in self._appends(batch):
            table = self.rows[slot].tables[group]
            assert index == len(table), "a block is appended out of turn"
            table.append(block)
        if self.scheduled_rows is not None:
            self._compare(batch, self.scheduled_rows)
        assert len(set(batch.slots.tolist())) == len(batch.slots), "a row twice in one step"
        columns = (batch.slots, batch.num_computed_tokens, batch.num_scheduled_tokens)
        steps = list(zip(*(column.tolist() for column in columns), strict=True))
        for (slot, _, _), request in zip(steps, batch.req_ids.tolist(), strict=True):
            assert self.rows[slot].request == request, "the slot is another request's"
        rights = [
            self._decode(self.rows[slot], computed, count - 1)
            for slot, computed, count in steps[: batch.num_decodes]
        ]
        for slot, computed, count in steps[batch.num_decodes :]:
            self._write(self.rows[slot], computed, count)
        drawn: list[list[int]] = []
        table = zip(steps, batch.samples.tolist(), strict=True)
        for number, ((slot, computed, count), samples) in enumerate(table):
            row, right = self.rows[slot], 0
            if number < batch.num_decodes:
                computed, right = len(row.tokens) - 1, rights[number]
                assert samples, "a decode gives no token"
                self._read(
                    _Row(row.request, self._ahead(row, right), row.tables, None),
                    computed,
                    1 + right,
                )
            else:
                self._read(row, computed, count)
                assert samples == (computed + count == len(row.tokens))
            if samples:
                row.tokens, before = self._ahead(row, 1 + right), len(row.tokens)
                drawn.append(row.tokens[before:])
        return self._output(batch, drawn)

    def _decode(self, row: _Row, computed: int, drafts: int) -> int:
        """Write the row's newest token and its drafts; how many of these are right."""
        assert 0 <= drafts <= self.num_drafts
        known = len(row.tokens)
        assert known - 1 <= computed, "the host believes the row to stand behind where it does"
        if not self.num_drafts:
            assert known - 1 == computed, "an input that nobody knows"
        right = self.held(row.request, known, drafts)
        wrong = [-1 - position for position in range(drafts - right)]
        drafted = _Row(row.request, self._ahead(row, right) + wrong, row.tables, None)
        self._write(drafted, known - 1, 1 + drafts)
        return right

    def _ahead(self, row: _Row, count: int) -> list[int]:
        """The row's tokens, and so many more."""
        known = len(row.tokens)
        return row.tokens + [self.draw(row.request, known + index) for index in range(count)]

    def _output(self, batch: ScheduledBatch, drawn: list[list[int]]) -> ScheduledBatchOutput:
        tokens = [token for run in drawn for token in run]
        self.num_given.append(len(tokens))
        counts = np.array([len(run) for run in drawn], dtype=np.int32) if self.num_drafts else None
        told = [
            (self.rows[slot].request, token)
            for slot, run in zip(batch.slots[batch.samples].tolist(), drawn, strict=True)
            for token in run
            if self.rows[slot].wanted_logprobs is not None
        ]
        return ScheduledBatchOutput(np.array(tokens, dtype=np.int32), counts, _logprobs(told))

    def collect(self, handle: ScheduledBatchOutput) -> ScheduledBatchOutput:
        return handle

    def _appends(self, batch: ScheduledBatch) -> Iterator[tuple[int, int, int, int]]:
        """Slot, group, index in its table, block."""
        columns = -(-self.max_model_len // self.block_size)
        for slot, column, block in batch.block_appends.tolist():
            yield slot, *divmod(column, columns), block

    def _compare(self, batch: ScheduledBatch, scheduled: RowTable) -> None:
        """Every block goes to who holds it, and no row computes what nobody will ask for."""
        for slot, group, index, block in self._appends(batch):
            sequence = scheduled.sequences[slot]
            assert sequence is not None, "a block is appended to a row that has left"
            assert sequence.block_tables[group][index] == block, (
                "a block is appended to another's row"
            )
        lengths = zip(batch.slots.tolist(), batch.context_lens.tolist(), strict=True)
        for number, (slot, length) in enumerate(lengths):
            sequence, tables = scheduled.sequences[slot], self.rows[slot].tables
            assert sequence is not None, "a step for a row that has left"
            assert list(sequence.block_tables) == tables, "the blocks are not the scheduler's"
            longest = sequence.max_total_tokens
            assert length < longest, "a step for a token that nobody wants"
            if number < batch.num_decodes:
                for table in tables:
                    assert len(table) * self.block_size >= length, "no block for the drafts"

    def _write(self, row: _Row, computed: int, count: int) -> None:
        assert computed + count <= len(row.tokens), "an input that nobody knows"
        assert len(row.tables) == len(self.windows)
        for group in range(len(self.windows)):
            for _, at, seen in self._places(row, group, computed, computed + count):
                self.cache[at] = seen

    def _read(self, row: _Row, computed: int, count: int) -> None:
        """Once all rows have written theirs, as in a layer."""
        for group, window in enumerate(self.windows):
            first_seen = 0 if window is None else max(0, computed - window + 1)
            for position, at, seen in self._places(row, group, first_seen, computed + count):
                assert self.cache[at] == seen, f"position {position} is not the row's own"

    def _places(
        self, row: _Row, group: int, first: int, end: int
    ) -> Iterator[tuple[int, int, int]]:
        """Position, place in the cache and content of the row's tokens from `first` to `end`."""
        table, seen = row.tables[group], group + 1
        for position, token in enumerate(row.tokens[:end]):
            seen = hash((seen, token))
            if position >= first:
                block, offset = divmod(position, self.block_size)
                yield position, table[block] * self.block_size + offset, seen


def _logprobs(told: list[tuple[int, int]]) -> LogprobRows | None:
    """Of (request, token) each a log-probability that tells them."""
    if not told:
        return None
    requests, tokens = (np.array(column, dtype=np.int64) for column in zip(*told, strict=True))
    return LogprobRows(
        requests,
        tokens[:, None].astype(np.int32),
        -(requests * 1000 + tokens)[:, None].astype(np.float32),
        np.ones(len(told), dtype=np.int32),
    )
