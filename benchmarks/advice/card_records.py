"""Predict the recorded loads of a card again, each by a table that its shape had no part in.

    python -m benchmarks.advice.card_records RUN.jsonl.gz…
    python -m benchmarks.advice.card_records RUN.jsonl.gz… --table h200.json

The steps without a load (benchmarks.advice.h200_truth --record) of all other shapes are fitted,
with the host's seconds for a step of each of their loads, and the loads of a shape predicted by the
fit. Prints a Markdown row for each pair, the errors of all, and how the form that is predicted to
be best compares with the one that was: all forms of a shape
were asked at the same rates. `--table` writes the fit of all shapes. Needs no card.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from atom.advisor.launches import Launches, captured_buckets
from atom.advisor.operations import model_work
from atom.advisor.room import Division
from atom.model_engine.runner.cuda_graphs.prompt_buckets import PromptBucket
from atom.sizing import ModelFacts, RunLimits
from atom.sizing.cards import CARDS
from atom.sizing.options.scheduling import SchedulerOptions
from benchmarks.advice.h200_truth import (
    KEYS,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    Predictor,
    Served,
    errors,
    figures,
    load_at,
)
from benchmarks.advice.records import QuietSteps, SeenLoad, StepRecord, append, read
from benchmarks.step_rates.figures import Figures
from benchmarks.step_rates.fit import TimedStep, fit
from benchmarks.step_rates.rates_table import TableSource, write_table

_WITHIN = 1.05  # of the best, so near is the choice as good


@dataclass(frozen=True, slots=True)
class Pair:
    """A load with what was seen and predicted of it, by KEYS."""

    load: SeenLoad
    seen: dict[str, float]
    predicted: dict[str, float]


def division_of(record: QuietSteps | SeenLoad) -> Division:
    return Division(Served(record.form).facts, CARDS[record.card], record.form.ranks)


def timed(records: Sequence[QuietSteps]) -> Iterator[TimedStep]:
    """Yield the steps of records as a fit reads them: padded as the engine's graphs pad them, with
    the seconds of the host where no graph holds them."""
    for record in records:
        division = division_of(record)
        work = model_work(division.facts, division.kv, division.sharding)
        launches = Launches(_buckets(division.facts, record), 0.0, 1.0)
        for step in record.steps:
            launch = launches.of_step(step.shape)
            host_seconds = step.host_seconds if launch.beside else 0.0
            about = step.seconds, host_seconds, not step.decodes
            timed_step = TimedStep(record.form.shape, work, launch.shape, *about)
            if not (step.decodes and host_seconds):
                yield timed_step
            elif not timed_step.is_of_host:
                # Behind a step of many prompts, for whose launches its host waited.
                yield replace(timed_step, host_seconds=0.0)


def launched(load: SeenLoad) -> tuple[StepRecord, StepRecord] | None:
    """Return of a load's steps with prompts beside answers that no graph holds the middle one by
    the seconds of its host, behind the step before it: of answers alone, so that the host did not
    wait until there was room to launch. None if a load has no such step."""
    launches = Launches(_buckets(division_of(load).facts, load), 0.0, 1.0)
    found = [
        (before, step)
        for before, step in itertools.pairwise(load.steps)
        if step.decodes and not before.chunks and launches.of_step(step.shape).beside
    ]
    return sorted(found, key=lambda each: each[1].host_seconds)[len(found) // 2] if found else None


def held_up(loads: Sequence[SeenLoad]) -> Iterator[TimedStep]:
    """Yield of each load the step that `launched` finds, of which only its host is known."""
    for load in loads:
        if (pair := launched(load)) is not None:
            division, (_, step) = division_of(load), pair
            work = model_work(division.facts, division.kv, division.sharding)
            seconds = step.host_seconds
            yield TimedStep(load.form.shape, work, step.shape, seconds, seconds)


def kept(record: QuietSteps | SeenLoad) -> QuietSteps | SeenLoad:
    """Return a record with no more than a prediction reads."""
    if isinstance(record, QuietSteps):
        return record
    return msgspec.structs.replace(record, requests=(), steps=launched(record) or ())


def _buckets(facts: ModelFacts, record: QuietSteps | SeenLoad) -> tuple[PromptBucket, ...]:
    limits = RunLimits(
        block_size=16,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=SchedulerOptions().max_num_batched_tokens,
    )
    return captured_buckets(facts, limits, CARDS[record.card].vendor, record.form.ranks)


def predicted(steps: Sequence[TimedStep], loads: Sequence[SeenLoad]) -> Iterator[Pair]:
    """Yield the pairs, shape by shape, by a fit of the steps of all other shapes."""
    for shape in sorted({load.form.shape for load in loads}):
        others = [each for each in steps if each.name != shape]
        own = [load for load in loads if load.form.shape == shape]
        rates = fit(others, CARDS[own[0].card]).rates()
        for load in own:
            predictor = Predictor.by_rates(division_of(load), rates)
            found = figures(predictor.predict(load_at(load.rate, load.in_out)))
            seen = {key: float("inf") if each is None else each for key, each in load.seen.items()}
            yield Pair(load, seen, found)


def choices(pairs: Sequence[Pair]) -> Iterator[tuple[str, str, str, float]]:
    """Yield each question to which several forms of a shape are answers: the load and the figure,
    the form that is predicted to be best, the one that was, and how much worse the first one was:
    the figure's ratio, 1 for equally good."""
    asked: dict[tuple[str, tuple[int, int], float], list[Pair]] = {}
    for pair in pairs:
        asked.setdefault((pair.load.form.shape, pair.load.in_out, pair.load.share), []).append(pair)
    for (shape, lengths, share), forms in asked.items():
        if len(forms) < 2:
            continue
        for key in ("ttft p90", "tpot p90", "goodput/s"):
            sign = -1.0 if key == "goodput/s" else 1.0
            told = min(forms, key=lambda pair: sign * pair.predicted[key])
            best = min(forms, key=lambda pair: sign * pair.seen[key])
            one, other = told.seen[key], best.seen[key]
            worse = 1.0 if one == other else (other / one if sign < 0 and one else one / other)
            name = f"{shape} {lengths} at {share:g}: {key}"
            yield name, told.load.form.label, best.load.form.label, worse


def row(pair: Pair) -> str:
    load = pair.load
    cells = (f"{1e3 * pair.seen[key]:.3g}, {1e3 * pair.predicted[key]:.3g}" for key in KEYS[:4])
    rates = (f"{pair.seen[key]:.3g}, {pair.predicted[key]:.3g}" for key in KEYS[4:])
    lengths = f"{load.in_out[0]}, {load.in_out[1]}"
    return f"| {load.form.label} | {lengths} | {load.share:g} | {' | '.join([*cells, *rates])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="Predictions of recorded loads of a card.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--figures", type=Path, help="further steps: benchmarks.step_rates.figures")
    parser.add_argument("--table", type=Path, help="where to write the fit of all shapes")
    parser.add_argument("--date", default="", help="of the run, for --table")
    parser.add_argument("--keep", type=Path, help="write the part of the records that is read here")
    args = parser.parse_args()
    records = list(read(args.files))
    if args.keep is not None:
        for record in records:
            append(args.keep, kept(record))
        return 0
    quiet = [each for each in records if isinstance(each, QuietSteps)]
    loads = [each for each in records if isinstance(each, SeenLoad)]
    print("| model | in, out | share | " + " | ".join(KEYS) + " |")
    print("|---|---|---:|" + "---|" * len(KEYS))
    pairs: list[Pair] = []
    steps = [*timed(quiet), *held_up(loads)]
    published = None if args.figures is None else Figures.read(args.figures)
    if published is not None:
        steps += published.steps
    for pair in predicted(steps, loads):
        print(row(pair), flush=True)
        pairs.append(pair)
    off = errors([{"seen": each.seen, "predicted": each.predicted} for each in pairs])
    questions = list(choices(pairs))
    for name, told, best, worse in questions:
        print(f"{name}: {told}; best: {best}, {worse:.2f}")
    good = sum(worse <= _WITHIN for _, _, _, worse in questions)
    print(json.dumps({"pairs": len(pairs), "errors": off, "good": good, "of": len(questions)}))
    if args.table is not None:
        card = CARDS[quiet[0].card]
        source = TableSource(f"NVIDIA {card.name}", args.date)
        if published is not None:
            source = replace(published.source, date=args.date)
        write_table(args.table, card, fit(steps, card), steps, source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
