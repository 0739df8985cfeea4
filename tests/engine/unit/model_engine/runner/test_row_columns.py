"""A number of a row that is declared once arrives everywhere: batch, codec, slots and steps."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from atom.model_engine.batch import NewRow, ScheduledBatch
from atom.model_engine.executor.tensor_parallel.step_codec import (
    RunStep,
    decode_step,
    encode_batch,
)
from atom.model_engine.request import Request
from atom.model_engine.row_columns import EMPTY_ROW, ROW_COLUMNS, row_numbers
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.slots.input_batch import InputBatch
from atom.model_engine.runner.slots.slot_columns import SlotState, TableSize
from atom.model_engine.runner.step_variant import COLUMN_OF, PLAIN, StepVariant, forward_context
from atom.model_engine.runner.warm_up import of_variant, prompt_batch
from atom.model_engine.schedule.batch_builder import BatchBuilder
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence
from atom.sampling_params import SamplingParams

CPU = torch.device("cpu")
SLOTS, LENGTH, BLOCK = 4, 16, 4
WIDEST = StepVariant(**dict.fromkeys(COLUMN_OF, True))
KINDS = list(COLUMN_OF)


def row(**numbers: int) -> NewRow:
    """A row whose other numbers are those of an empty one."""
    given: dict[str, Any] = EMPTY_ROW | {"num_prompt_tokens": 3} | numbers
    return NewRow(
        token_ids=np.arange(3, dtype=np.int32), block_ids=([1],), params=SamplingParams(), **given
    )


def batch_of(*rows: NewRow) -> ScheduledBatch:
    count = len(rows)
    return ScheduledBatch(
        new_rows=rows,
        block_appends=np.zeros((0, 3), dtype=np.int32),
        slots=np.array([each.slot for each in rows], dtype=np.intp),
        req_ids=np.arange(count, dtype=np.int64),
        num_computed_tokens=np.zeros(count, dtype=np.int32),
        num_scheduled_tokens=np.full(count, 3, dtype=np.int32),
        samples=np.ones(count, dtype=np.bool_),
        num_decodes=0,
    )


def slot_state(served: StepVariant) -> SlotState:
    return SlotState(SLOTS, 32, TableSize(num_groups=1, max_blocks=LENGTH // BLOCK), CPU, served)


def test_a_sequence_that_enters_brings_all_of_its_numbers() -> None:
    sequence = Sequence(Request(7, [4, 5, 6], SamplingParams(), 9, 0.0))
    sequence.slot, sequence.seed, sequence.lora_slot, sequence.position_delta = 2, 11, 3, -5
    sequence.block_tables = ([1],)
    builder = BatchBuilder(RowTable(SLOTS, LENGTH))
    builder.enter(sequence)
    (entered,) = builder.build(np.zeros(0, dtype=np.intp), []).new_rows
    found = {name: getattr(entered, name) for name in ROW_COLUMNS}
    assert found == row_numbers(sequence)
    assert found == {
        "slot": 2, "request_id": 7, "seed": 11, "num_prompt_tokens": 3, "lora_slot": 3,
        "position_delta": -5,
    }  # fmt: skip


@pytest.mark.parametrize("name", ROW_COLUMNS)
@pytest.mark.parametrize("number", [0, 3, 2**40])
def test_a_follower_is_told_every_number(name: str, number: int) -> None:
    sent = batch_of(row(), row(**{name: number}), row(slot=2))
    told = decode_step(encode_batch(sent, 0))
    assert isinstance(told, RunStep)
    for column in ROW_COLUMNS:
        given = [getattr(each, column) for each in sent.new_rows]
        assert [getattr(each, column) for each in told.batch.new_rows] == given


@pytest.mark.parametrize("served", WIDEST.narrower())
def test_slots_keep_the_columns_that_are_declared_to_be_kept(served: StepVariant) -> None:
    state = slot_state(served)
    for name, column in ROW_COLUMNS.items():
        if column.kept is None:
            continue
        if not served.has(name):
            assert getattr(state.device, name) is None
            continue
        kept = state.device.column(name)
        assert kept.numpy().dtype == column.kept
        assert kept.tolist() == [column.empty] * (SLOTS + 1)
        entering = row(**{"slot": 2, name: 5})
        state.enter((entering,), np.zeros((1, 0), np.int32), np.zeros(0, np.intp))
        assert kept[2] == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_of_the_kinds_of_its_rows(kind: str) -> None:
    served, column = StepVariant(**{kind: True}), COLUMN_OF[kind]
    inputs = InputBatch(slot_state(served), LENGTH, BLOCK, CPU)
    plain, mixed = (
        batch_of(row(), row(slot=1)),
        batch_of(row(slot=2), row(**{"slot": 3, column: 0})),
    )
    for batch, variant in ((plain, PLAIN), (mixed, served)):
        inputs.apply(batch)
        assert inputs.variant(batch) == variant
        of_tokens = inputs.prepare(batch).of_tokens
        assert tuple(of_tokens) == variant.columns
    default = ROW_COLUMNS[column].default
    assert of_tokens[column].tolist() == [default] * 3 + [0] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_of_plain_rows_looks_at_no_column(kind: str) -> None:
    inputs = InputBatch(slot_state(PLAIN), LENGTH, BLOCK, CPU)
    batch = batch_of(row(**{COLUMN_OF[kind]: 0}))
    inputs.apply(batch)
    assert inputs.variant(batch) == PLAIN
    assert inputs.prepare(batch).of_tokens == {}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_told_of_every_kind(kind: str) -> None:
    column, numbers = COLUMN_OF[kind], torch.tensor([0, 1], dtype=torch.int32)
    plain, told = (forward_context((), None, given) for given in ({}, {column: numbers}))
    differing = [
        each.name
        for each in fields(told)
        if getattr(told, each.name) is not getattr(plain, each.name)
    ]
    assert differing == [kind]


@pytest.mark.parametrize("variant", WIDEST.narrower())
def test_rows_of_the_warm_up_are_of_the_asked_kinds(variant: StepVariant) -> None:
    batch = of_variant(prompt_batch([2, 3], CacheShape(4, BLOCK, 1)), variant)
    inputs = InputBatch(slot_state(WIDEST), LENGTH, BLOCK, CPU)
    inputs.apply(batch)
    assert inputs.variant(batch) == variant
    assert [each.num_prompt_tokens for each in batch.new_rows] == [2, 3]
