"""Steps as bytes, for the ranks that follow: arrays one after the other, unchanged.

A head of whole numbers holds the length of each array; a decode step grows with its rows alone.
The few parameters of new rows, and the control calls, are msgpack. Never pickle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import (
    NO_IMAGES,
    Continuations,
    ImageEncode,
    ImageRows,
    LoraLoad,
    NewRow,
    PromptScore,
    ScheduledBatch,
    StateCopy,
    StepImages,
    TokenMask,
)
from atom.model_engine.control import RANK_CONTROLS, RankControl
from atom.model_engine.row_columns import ROW_COLUMNS
from atom.model_engine.sequence_images import ImageSpan
from atom.sampling_params import SamplingParams

Number = TypeVar("Number", bound=np.generic)

_STEP, _SAMPLE, _MASKED, _CONTROL = range(4)
_HEAD = 16  # whole numbers of every message's head: its kind, and its arrays' lengths
_ALIGNMENT = 8
_DIMENSIONS = 4  # most of an image's pixels
_SPAN = 1 + len(fields(ImageSpan))  # numbers of an image's place: the row, and its fields
_PARAMS = msgspec.msgpack.Decoder(list[SamplingParams])
_numbers_of = attrgetter(*ROW_COLUMNS)


@dataclass(frozen=True, slots=True)
class RunStep:
    """Submit a batch; outstanding: earlier steps whose tokens the leader has not collected. A
    runner's knowledge of its own steps decides how it runs the next one."""

    batch: ScheduledBatch
    outstanding: int


@dataclass(frozen=True, slots=True)
class SampleStep:
    """Sample the step that was submitted last."""

    mask: TokenMask | None


Call = RunStep | SampleStep | RankControl[Any]


def encode_batch(batch: ScheduledBatch, outstanding: int) -> bytearray:
    """Encode a batch to submit, and how many steps before it are not collected."""
    new, scores = batch.new_rows, batch.prompt_scores
    parts: list[NDArray[np.generic]] = [
        _head(
            _STEP,
            len(batch.slots),
            len(batch.block_appends),
            len(new),
            len(scores),
            batch.num_decodes,
            batch.samples_later,
            outstanding,
            len(batch.state_loads),
            len(batch.state_saves),
            len(batch.lora_loads),
            sum(len(row.images) for row in new),
            len(batch.images.encodes),
            len(batch.images.rows),
            *batch.continuations.token_ids.shape,
        ),
        batch.slots,
        batch.req_ids,
        batch.num_computed_tokens,
        batch.num_scheduled_tokens,
        batch.samples,
        batch.block_appends,
    ]
    if len((foretold := batch.continuations).slots):
        parts += [foretold.slots, foretold.known, foretold.token_ids]
    if scores:
        numbers = [(score.row, score.first, score.count) for score in scores]
        parts.append(np.array(numbers, dtype=np.int64))
    if copies := (*batch.state_loads, *batch.state_saves):
        parts.append(np.array([(each.slot, each.checkpoint) for each in copies], dtype=np.int64))
    if batch.lora_loads:
        loads = [(each.number, each.slot) for each in batch.lora_loads]
        parts.append(np.array(loads, dtype=np.int64))
    parts += _image_arrays(batch.images)
    return _joined([*parts, *_row_arrays(new)] if new else parts)


def encode_sample(mask: TokenMask | None) -> bytearray:
    """Encode the call that samples a batch which said `samples_later`."""
    if mask is None:
        return _joined([_head(_SAMPLE)])
    return _joined([_head(_MASKED, *mask.bits.shape), mask.rows, mask.bits])


def encode_control(call: RankControl[Any]) -> bytearray:
    """Encode a control call by its name and arguments."""
    data = np.frombuffer(msgspec.msgpack.encode((call.name, call)), dtype=np.uint8)
    return _joined([_head(_CONTROL, len(data)), data])


def _decode_control(data: bytes) -> RankControl[Any]:
    name, args = msgspec.msgpack.decode(data)
    call: RankControl[Any] = msgspec.convert(args, RANK_CONTROLS[name])
    return call


def decode_step(message: bytearray) -> Call:
    """Return the call of the leader's runner that a message encodes."""
    reader = _Reader(message)
    kind, *sizes = reader.array(np.int64, _HEAD).tolist()
    if kind == _SAMPLE:
        return SampleStep(None)
    if kind == _CONTROL:
        return _decode_control(reader.array(np.uint8, sizes[0]).tobytes())
    rows, appends, new, scores, num_decodes, samples_later, outstanding, *copied = sizes
    loads, saves, loras, spans, encodes, image_rows, foretold, ahead = copied
    if kind == _MASKED:
        return SampleStep(
            TokenMask(reader.array(np.int32, rows), reader.array(np.int32, rows, appends))
        )
    arrays = (
        reader.array(np.intp, rows),
        reader.array(np.int64, rows),
        reader.array(np.int32, rows),
        reader.array(np.int32, rows),
        reader.array(np.bool_, rows),
        reader.array(np.int32, appends, 3),
    )
    slots, req_ids, computed, scheduled, samples, block_appends = arrays
    continuations = Continuations(
        reader.array(np.intp, foretold),
        reader.array(np.int32, foretold),
        reader.array(np.int32, foretold, ahead),
    )
    numbers = reader.array(np.int64, scores, 3).tolist()
    copies = tuple(StateCopy(*each) for each in reader.array(np.int64, loads + saves, 2).tolist())
    lora_loads = tuple(LoraLoad(*each) for each in reader.array(np.int64, loras, 2).tolist())
    images = _decode_images(reader, encodes, image_rows)
    batch = ScheduledBatch(
        new_rows=_decode_rows(reader, new, spans) if new else (),
        block_appends=block_appends,
        slots=slots,
        req_ids=req_ids,
        num_computed_tokens=computed,
        num_scheduled_tokens=scheduled,
        samples=samples,
        num_decodes=num_decodes,
        samples_later=bool(samples_later),
        prompt_scores=tuple(PromptScore(*score) for score in numbers),
        state_loads=copies[:loads],
        state_saves=copies[loads:],
        lora_loads=lora_loads,
        images=images,
        continuations=continuations,
    )
    return RunStep(batch, outstanding)


def _head(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers + (0,) * (_HEAD - len(numbers)), dtype=np.int64)


def _row_arrays(rows: Sequence[NewRow]) -> list[NDArray[np.generic]]:
    params = msgspec.msgpack.encode([row.params for row in rows])
    groups = len(rows[0].block_ids)
    numbers = [(*_numbers_of(row), len(row.token_ids), *map(len, row.block_ids)) for row in rows]
    blocks = [np.array(ids, dtype=np.int32) for row in rows for ids in row.block_ids]
    spans = [(at, *astuple(span)) for at, row in enumerate(rows) for span in row.images]
    return [
        np.array((groups, len(params)), dtype=np.int64),
        np.array(numbers, dtype=np.int64),
        *(row.token_ids for row in rows),
        *blocks,
        np.frombuffer(params, dtype=np.uint8),
        *([np.array(spans, dtype=np.int64)] if spans else ()),
    ]


def _decode_rows(reader: _Reader, count: int, spans: int) -> tuple[NewRow, ...]:
    groups, params_bytes = reader.array(np.int64, 2).tolist()
    columns = len(ROW_COLUMNS)
    numbers = reader.array(np.int64, count, columns + 1 + groups).tolist()
    tokens = [reader.array(np.int32, row[columns]) for row in numbers]
    blocks = [
        tuple(reader.array(np.int32, size).tolist() for size in row[columns + 1 :])
        for row in numbers
    ]
    params = _PARAMS.decode(reader.array(np.uint8, params_bytes).tobytes())
    images: list[list[ImageSpan]] = [[] for _ in numbers]
    for at, *span in reader.array(np.int64, spans, _SPAN).tolist():
        images[at].append(ImageSpan(*span))
    return tuple(
        NewRow(
            token_ids=token_ids,
            block_ids=block_ids,
            params=own,
            images=tuple(spans_of_row),
            **dict(zip(ROW_COLUMNS, row, strict=False)),
        )
        for row, token_ids, block_ids, own, spans_of_row in zip(
            numbers, tokens, blocks, params, images, strict=True
        )
    )


def _image_arrays(images: StepImages) -> list[NDArray[np.generic]]:
    """List the arrays of images: their sizes, and then what they have."""
    if not images.encodes and not images.rows:
        return []
    heads = [
        (*each.grid, len(each.rows), len(each.digest), *_shape_of(each.pixels))
        for each in images.encodes
    ]
    rows = [(each.slot, len(each.rows)) for each in images.rows]
    parts: list[NDArray[np.generic]] = [np.array(heads, np.int64), np.array(rows, np.int64)]
    for image in images.encodes:
        parts += [image.rows, np.frombuffer(image.digest, np.uint8), image.pixels]
    for taken in images.rows:
        parts += [taken.positions, taken.rows]
    return parts


def _shape_of(pixels: NDArray[np.float32]) -> tuple[int, ...]:
    """Return the shape in `_DIMENSIONS` numbers, 0 for a dimension that there is not."""
    return pixels.shape + (0,) * (_DIMENSIONS - pixels.ndim)


def _decode_images(reader: _Reader, encodes: int, image_rows: int) -> StepImages:
    if not encodes and not image_rows:
        return NO_IMAGES
    heads = reader.array(np.int64, encodes, 5 + _DIMENSIONS).tolist()
    rows = reader.array(np.int64, image_rows, 2).tolist()
    images = []
    for time, height, width, tokens, digest_bytes, *shape in heads:
        taken = reader.array(np.int32, tokens)
        digest = reader.array(np.uint8, digest_bytes).tobytes()
        pixels = reader.array(np.float32, *[each for each in shape if each])
        images.append(ImageEncode(digest, (time, height, width), taken, pixels))
    of_rows = tuple(
        ImageRows(slot, reader.array(np.int32, count), reader.array(np.int32, count))
        for slot, count in rows
    )
    return StepImages(tuple(images), of_rows)


class _Reader:
    """The arrays of a message in turn."""

    def __init__(self, message: bytearray) -> None:
        self._message = message
        self._at = 0

    def array(self, dtype: type[Number], *shape: int) -> NDArray[Number]:
        count = int(np.prod(shape))
        read = np.frombuffer(self._message, dtype, count, self._at).reshape(shape)
        self._at += -(-read.nbytes // _ALIGNMENT) * _ALIGNMENT
        return read


def _joined(parts: Sequence[NDArray[np.generic]]) -> bytearray:
    """Join the arrays, each aligned to a multiple of `_ALIGNMENT`."""
    message = bytearray()
    for part in parts:
        message += part.tobytes()
        message += bytes(-len(message) % _ALIGNMENT)
    return message
