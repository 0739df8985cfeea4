"""Records of a run on a card: quiet steps of models, and loads with the times of each request.

`benchmarks.advice.h200_truth --record FILE` writes one JSON object a line, compressed and complete
after each, so that a run that is cut keeps its records. `benchmarks.advice.card_records` predicts
them without a card. Seconds are rounded to microseconds.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from atom.advisor.step_shape import Chunk, StepShape
from benchmarks.step_rates.recorded_steps import Sample

_DIGITS = 6


class Form(msgspec.Struct, frozen=True):
    """A model as it was run: a shape, its format and the ranks that share it."""

    shape: str
    quantization: str | None = None
    ranks: int = 1

    @classmethod
    def of(cls, words: str) -> Form:
        """Read SHAPE[:FORMAT[:RANKS]]; an empty FORMAT is the shape's own."""
        shape, *more = words.split(":")
        quantization, ranks = [*more, "", ""][:2]
        return cls(shape, quantization or None, int(ranks or 1))

    @property
    def label(self) -> str:
        named = self.shape if self.quantization is None else f"{self.shape} {self.quantization}"
        return named if self.ranks == 1 else f"{named} on {self.ranks}"


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """A step: its decodes with their mean context, its chunks as (computed, tokens), and the
    seconds of a Sample; begun: from the start of its load."""

    decodes: int
    context: int
    chunks: tuple[tuple[int, int], ...]
    seconds: float
    host_seconds: float
    device_seconds: float
    begun: float = 0.0

    @classmethod
    def of(cls, step: Sample, origin: float) -> StepRecord:
        contexts = step.shape.contexts
        numbers = step.seconds, step.host_seconds, step.device_seconds, step.begun - origin
        return cls(
            len(contexts),
            round(float(contexts.mean())) if len(contexts) else 0,
            tuple((chunk.computed, chunk.tokens) for chunk in step.shape.chunks),
            *(round(each, _DIGITS) for each in numbers),
        )

    @property
    def shape(self) -> StepShape:
        contexts = np.full(self.decodes, max(1, self.context), dtype=np.int64)
        chunks = tuple(Chunk(*each) for each in self.chunks)
        return StepShape(contexts, self.decodes, chunks, self.decodes + len(chunks))


class RequestRecord(msgspec.Struct, frozen=True, array_like=True):
    """A request: when it arrived, when the engine's loop took it, and its tokens."""

    arrived: float
    entered: float
    tokens: tuple[float, ...]


class QuietSteps(msgspec.Struct, frozen=True, tag="steps"):
    """Steps of a model without a load, each the middle one of several that are alike."""

    form: Form
    card: str
    steps: tuple[StepRecord, ...]


class SeenLoad(msgspec.Struct, frozen=True, tag="load", rename={"in_out": "in, out"}):
    """A load that was served. seen: its figures, by the names of h200_truth."""

    form: Form
    card: str
    in_out: tuple[int, int]
    share: float
    rate: float
    seen: dict[str, float | None]
    requests: tuple[RequestRecord, ...]
    steps: tuple[StepRecord, ...]


Record = QuietSteps | SeenLoad


def step_records(steps: Iterable[Sample], origin: float = 0.0) -> tuple[StepRecord, ...]:
    return tuple(StepRecord.of(each, origin) for each in steps)


def append(path: Path, record: Record) -> None:
    """Write a record behind those of a file."""
    with gzip.open(path, "ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def read(paths: Sequence[Path]) -> Iterator[Record]:
    """Read the records of files; a last one that was cut is left out."""
    decoder = msgspec.json.Decoder(Record)
    for path in paths:
        with gzip.open(path, "rb") as file:
            try:
                yield from map(decoder.decode, file)
            except EOFError:
                continue
