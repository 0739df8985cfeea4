"""What a follower is told of a step is the step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from atom.model_engine.batch import (
    Continuations,
    NewRow,
    PromptScore,
    ScheduledBatch,
    StateCopy,
    TokenMask,
)
from atom.model_engine.executor.tensor_parallel.step_codec import (
    RunStep,
    SampleStep,
    decode_step,
    encode_batch,
    encode_sample,
)
from atom.sampling_params import SamplingParams


def _row(slot: int, tokens: int, groups: int, **params: Any) -> NewRow:
    return NewRow(
        slot=slot,
        request_id=slot + (3 << 40),
        token_ids=np.arange(tokens, dtype=np.int32) + slot,
        num_prompt_tokens=max(tokens - 2, 1),
        block_ids=tuple(list(range(group, group + 3 + slot)) for group in range(groups)),
        params=SamplingParams(**params),
        seed=-(2**62) + slot,
    )


def _batch(rows: int, new_rows: tuple[NewRow, ...] = (), **changes: Any) -> ScheduledBatch:
    draw = np.random.default_rng(rows)
    return ScheduledBatch(
        **{
            "new_rows": new_rows,
            "block_appends": draw.integers(0, 99, size=(rows // 2, 3)).astype(np.int32),
            "slots": draw.permutation(rows).astype(np.intp),
            "req_ids": draw.integers(0, 2**60, size=rows),
            "num_computed_tokens": draw.integers(0, 999, size=rows).astype(np.int32),
            "num_scheduled_tokens": draw.integers(1, 99, size=rows).astype(np.int32),
            "samples": draw.integers(0, 2, size=rows).astype(np.bool_),
            "num_decodes": rows // 3,
            **changes,
        }
    )


BATCHES = {
    "one decode": _batch(1),
    "decodes of an odd number of rows": _batch(7),
    "rows that enter": _batch(
        3,
        (
            _row(0, 1, 1, temperature=0.0),
            _row(5, 40, 1, logit_bias={3: 1.5}, bad_words_token_ids=((1, 2), (4,)), logprobs=2),
        ),
    ),
    "several groups of layers": _batch(2, (_row(1, 9, 3), _row(2, 17, 3))),
    "states that are copied": _batch(
        3,
        state_loads=(StateCopy(2, 7),),
        state_saves=(StateCopy(0, 1), StateCopy(1, 12)),
        prompt_scores=(PromptScore(1, 3, 20),),
    ),
    "foretold tokens": _batch(
        3,
        continuations=Continuations(
            np.array([2, 0]),
            np.array([9, 4], np.int32),
            np.arange(10, dtype=np.int32).reshape(2, 5),
        ),
    ),
    "scores of prompts, sampled later": _batch(
        4, samples_later=True, prompt_scores=(PromptScore(1, 3, 20), PromptScore(2, 0, 1))
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_read_as_it_was_written(name: str) -> None:
    batch = BATCHES[name]
    read = decode_step(encode_batch(batch, 1))
    assert isinstance(read, RunStep)
    assert read.outstanding == 1
    assert _plain(read.batch) == _plain(batch)


@pytest.mark.parametrize(
    "mask",
    [None, TokenMask(np.array([0, 2], np.int32), np.arange(-5, 5, dtype=np.int32).reshape(2, 5))],
    ids=["without a mask", "masked"],
)
def test_a_call_to_sample_is_read_as_it_was_written(mask: TokenMask | None) -> None:
    read = decode_step(encode_sample(mask))
    assert isinstance(read, SampleStep)
    assert _plain(read) == _plain(SampleStep(mask))


def test_what_a_decode_step_says_grows_with_its_rows_alone() -> None:
    sizes = [len(encode_batch(_batch(rows), 0)) for rows in (64, 128, 256)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    assert sizes[2] < 256 * 40


def _plain(value: Any) -> Any:
    """Arrays as lists with their type, so that values can be compared."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in names}
    return value
