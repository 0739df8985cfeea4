"""PagedModel: an executor without a model that notices every wrong block, token and position.

Its KV cache holds, per cache slot, a hash of the group of layers and of all tokens up to there:
what attention would see. A step fails if what a row sees of its history in the cache, in each group
of layers as far back as its window, is not the row's own tokens, if a decode's input was never
sampled, or if a token is computed twice or left out. The token it draws is a function of the
request and the position alone, as a deterministic model's is of the history. Shown the scheduler's
rows, it also compares what it was told of them with what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from atom.model_engine.batch import ScheduledBatch, ScheduledBatchOutput
from atom.model_engine.schedule.row_table import RowTable
from tests.support.builders_engine import EOS

_EMPTY = 0


def drawn_token(request: int, position: int) -> int:
    """The token of this request at this position; now and then the end token."""
    mixed = (request * 7919 + position * 104729) % 1009
    return EOS if mixed % 17 == 0 else 100 + mixed


@dataclass
class _Row:
    request: int
    tokens: list[int]
    tables: list[list[int]]


@dataclass
class PagedModel:
    block_size: int
    num_blocks: int
    rows: dict[int, _Row] = field(default_factory=dict)  # by slot
    batches: list[ScheduledBatch] = field(default_factory=list)
    scheduled_rows: RowTable | None = None  # the scheduler's, as they are when a batch comes
    num_drafts: int = 0  # per decode, each with a place in the row's blocks
    draw: Callable[[int, int], int] = drawn_token  # the token of a request at a position
    windows: tuple[int | None, ...] = (None,)  # what each group of layers sees
    max_model_len: int = 64

    def __post_init__(self) -> None:
        self.cache = [_EMPTY] * (self.num_blocks * self.block_size)

    def submit(self, batch: ScheduledBatch) -> ScheduledBatchOutput:
        self.batches.append(batch)
        for new in batch.new_rows:
            tokens = new.token_ids.tolist()
            for position in range(new.num_prompt_tokens, len(tokens)):
                expected = self.draw(new.request_id, position)
                assert tokens[position] == expected, "a placeholder came back"
            self.rows[new.slot] = _Row(new.request_id, tokens, list(map(list, new.block_ids)))
        for slot, group, index, block in self._appends(batch):
            table = self.rows[slot].tables[group]
            assert index == len(table), "a block is appended out of turn"
            table.append(block)
        if self.scheduled_rows is not None:
            self._compare(batch, self.scheduled_rows)
        assert len(set(batch.slots.tolist())) == len(batch.slots), "a row twice in one step"
        drawn = []
        columns = (
            batch.slots,
            batch.req_ids,
            batch.num_computed_tokens,
            batch.num_scheduled_tokens,
        )
        table = zip(*(column.tolist() for column in columns), batch.samples.tolist(), strict=True)
        steps = list(table)
        for slot, request, computed, count, _ in steps:
            assert self.rows[slot].request == request, "the slot is another request's"
            self._write(self.rows[slot], computed, count)
        for number, (slot, request, computed, count, samples) in enumerate(steps):
            row = self.rows[slot]
            assert (number < batch.num_decodes) <= (count == 1)
            self._read(row, computed, count)
            assert samples == (computed + count == len(row.tokens))
            if samples:
                drawn.append(self.draw(request, len(row.tokens)))
                row.tokens.append(drawn[-1])
        return ScheduledBatchOutput(token_ids=np.array(drawn, dtype=np.int32))

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
                drafted = min(length + self.num_drafts, longest)
                for table in tables:
                    assert len(table) * self.block_size >= drafted, "no block for the drafts"

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
