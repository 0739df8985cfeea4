"""Loads on a GPU beside the advisor's predictions of them, with the GPU's own table of rates.

    python -m benchmarks.advice.h200_truth --seconds 240
    python -m benchmarks.advice.h200_truth --models qwen3-8b qwen3-8b:fp8 --record run.jsonl.gz
    python -m benchmarks.advice.h200_truth --recorded benchmarks/advice/h200_pairs.json

Engines of public shapes with random weights run one after the other in this process, each under
open loops from idle to more than it serves. Prints one JSON object a line as soon as it is known:
each pair of what was seen and what was predicted, with some of its steps, and the errors of all.
A run that is cut keeps what was printed. Some models are named as held out: a fit of rates to
the steps of a run leaves them out, and its errors are those of the held-out models. `--record`
keeps the model's steps without a load, and of each load the times of all requests and steps, for
`benchmarks.advice.card_records`. All formats of a shape are asked at the same rates. `--recorded`
predicts the pairs of an earlier run again and needs no card; `--launch` is then the host's seconds
for each layer of a step that no graph holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atom.advisor.candidates import launches_of
from atom.advisor.engine_form import EngineForm
from atom.advisor.operations import model_work
from atom.advisor.rates import Rates, Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Fleet, simulate
from atom.advisor.slo import Figures, Metric, Slo, figures_of
from atom.advisor.step_time import StepTimer
from atom.sizing import ModelFacts, online_scheme
from atom.sizing.cards import CARDS, Card
from atom.utils.device import detect_device
from benchmarks.advice.loads import EqualLoad, most_rate
from benchmarks.advice.open_loop import serve, serve_noted
from benchmarks.advice.records import (
    Form,
    QuietSteps,
    RequestRecord,
    SeenLoad,
    append,
    step_records,
)
from benchmarks.engines.offline_engine import OfflineEngine, free_memory
from benchmarks.step_rates.measure import card_of, config_of
from benchmarks.step_rates.recorded_steps import RecordedEngine, Sample

SLO = Slo({Metric.TTFT: 0.5, Metric.TPOT: 0.025})
KEYS = ("ttft p50", "ttft p90", "itl p50", "tpot p90", "requests/s", "goodput/s")
_ARRIVAL_SECONDS, _MOST_REQUESTS, _LEAST_REQUESTS = 5.0, 400, 12
_PRINTED_STEPS = 24
MAX_MODEL_LEN, MAX_NUM_SEQS = 8192, 256
# Of the steps without a load: rows, lengths, and the most tokens at once, by which prompts end.
_QUIET_ROWS, _QUIET_LENGTHS, _QUIET_TOKENS = (1, 8, 64, 256), (64, 512, 2048), 170_000


@dataclass(frozen=True, slots=True)
class Served:
    """A model. held_out: no fit of this program may read its steps."""

    form: Form
    held_out: bool = False

    @property
    def facts(self) -> ModelFacts:
        """Return the facts of the model in its format."""
        facts = self.plain_facts
        quantization = self.form.quantization
        return facts if quantization is None else facts.stored_as(online_scheme(quantization))

    @property
    def plain_facts(self) -> ModelFacts:
        return ModelFacts.from_hf_config(config_of(self.form.shape))


@dataclass(frozen=True, slots=True)
class Share:
    """A load: tokens of prompts and answers, and the share of the rate that steps alone allow."""

    lengths: tuple[int, int]
    share: float


MODELS = (
    Served(Form("qwen3-0.6b")),
    Served(Form("qwen3-8b")),
    Served(Form("qwen3-4b"), held_out=True),
    Served(Form("qwen3-8b", "fp8")),
    Served(Form("qwen3-4b", "fp8"), held_out=True),
    Served(Form("qwen3-30b-a3b"), held_out=True),
)
LOADS = (
    Share((512, 128), 0.1),
    Share((1024, 128), 0.5),
    Share((2048, 64), 0.8),
    Share((512, 256), 1.3),
)


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model as the advisor plans it on a card."""

    form: EngineForm
    timer: StepTimer

    @classmethod
    def of(cls, facts: ModelFacts, card: Card, tables: Tables, ranks: int = 1) -> Predictor:
        return cls.by_rates(Division(facts, card, ranks), tables.rates(card, ranks))

    @classmethod
    def by_rates(cls, division: Division, rates: Rates) -> Predictor:
        """Plan a model on so many devices of a card, whose steps these rates predict."""
        facts, card = division.facts, division.card
        form = plan_form(division, MAX_NUM_SEQS, MAX_MODEL_LEN)
        limits = replace(form.limits, prefix_caching=False, max_model_len=MAX_MODEL_LEN)
        work = model_work(
            facts, division.kv, division.sharding, element_bytes=division.element_bytes
        )
        return cls(replace(form, limits=limits), StepTimer(work, card, rates))

    def launching_in(self, seconds: float) -> Predictor:
        """Return the predictor with other seconds for a layer of a step that no graph holds."""
        rates = self.timer.rates
        changed = msgspec.structs.replace(rates.seconds, launch=seconds)
        return replace(self, timer=replace(self.timer, rates=replace(rates, seconds=changed)))

    def most_rate(self, lengths: tuple[int, int]) -> float:
        """Return the requests per second that steps alone allow."""
        return most_rate(self.timer, MAX_NUM_SEQS // 2, lengths)

    def predict(self, load: EqualLoad) -> Figures:
        launches = launches_of(self.form, self.timer)
        outcome = simulate(Fleet(self.form, self.timer.seconds, launches=launches), load)
        return figures_of(outcome, SLO, load.prompt_tokens, 1)


def figures(found: Figures) -> dict[str, float]:
    """Return the figures that are compared, in seconds or per second."""
    values = (
        found.at(Metric.TTFT, 50),
        found.at(Metric.TTFT, 90),
        found.at(Metric.ITL, 50),
        found.at(Metric.TPOT, 90),
        found.request_rate,
        found.kept * found.request_rate,
    )
    return {key: float(f"{value:.5g}") for key, value in zip(KEYS, values, strict=True)}


def load_of(share: Share, most_rate: float) -> EqualLoad:
    """Return the arrivals of some seconds at a share of a rate."""
    return load_at(share.share * most_rate, share.lengths)


def load_at(rate: float, lengths: tuple[int, int]) -> EqualLoad:
    count = min(_MOST_REQUESTS, max(_LEAST_REQUESTS, round(rate * _ARRIVAL_SECONDS)))
    return EqualLoad.at_rate(count, rate, lengths)


def recorded(path: Path, tables: Tables, launch: float | None) -> Iterator[dict[str, Any]]:
    """Yield the pairs of an earlier run with the predictions of now. launch: seconds of each layer
    of a step that no graph holds; None for the table's."""
    document = json.loads(path.read_text(encoding="utf-8"))
    card = CARDS[document["card"]]
    for pair in document["pairs"]:
        form = Form.of(pair["model"])
        predictor = Predictor.of(Served(form).facts, card, tables, form.ranks)
        if launch is not None:
            predictor = predictor.launching_in(launch)
        prompt, answer = pair["in, out"]
        load = load_at(pair["rate"], (prompt, answer))
        yield {**pair, "predicted": figures(predictor.predict(load))}


def started(served: Served, folder: Path, device: str) -> OfflineEngine:
    """Start an engine of a shape with random weights."""
    form = served.form
    (folder / "config.json").write_text(json.dumps(config_of(form.shape)))
    options: dict[str, Any] = {} if form.quantization is None else {
        "quantization": form.quantization
    }  # fmt: skip
    if form.ranks > 1:
        options["tensor_parallel_size"] = form.ranks
    return OfflineEngine(
        str(folder),
        load_dummy=True,
        device=device,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        enable_prefix_caching=False,
        **options,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A run on a device. ends_at: on the monotonic clock; record: the file to keep steps and
    requests in, if any."""

    device: str
    card: Card
    tables: Tables
    ends_at: float
    record: Path | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends_at

    def keep(self, record: QuietSteps | SeenLoad) -> None:
        if self.record is not None:
            append(self.record, record)


def pairs(run: Run, served: Served, loads: Sequence[Share]) -> Iterator[dict[str, Any]]:
    """Yield what was seen and predicted of a model under each load, until a time is over."""
    card = run.card
    predictor = Predictor.of(served.facts, card, run.tables, served.form.ranks)
    plain = Predictor.of(served.plain_facts, card, run.tables)
    with tempfile.TemporaryDirectory() as folder:
        engine = started(served, Path(folder), run.device)
        recorded = RecordedEngine(engine)
        if run.record is not None:
            quiet = recorded.samples(_QUIET_ROWS, _QUIET_LENGTHS, _QUIET_TOKENS)
            run.keep(QuietSteps(served.form, card.name, step_records(quiet)))
        serve(engine, load_of(Share(loads[0].lengths, 1.0), 4.0), 10.0)  # not measured: first steps
        for share in loads:
            if run.is_over:
                break
            rate = share.share * plain.most_rate(share.lengths)
            yield pair(run, served, recorded, (share, rate)) | {
                "predicted": figures(predictor.predict(load_at(rate, share.lengths))),
                "steps": [described(each) for each in chosen(recorded.steps)],
            }
        engine.close()
    del engine, recorded
    free_memory()


def pair(
    run: Run, served: Served, recorded: RecordedEngine, asked: tuple[Share, float]
) -> dict[str, Any]:
    """Serve a load at a rate, and return what was seen."""
    (share, rate), card = asked, run.card.name
    load = load_at(rate, share.lengths)
    recorded.steps.clear()
    outcome, tokens = serve_noted(recorded.engine, load, 6.0 * _ARRIVAL_SECONDS)
    seen = figures(figures_of(outcome, SLO, load.prompt_tokens, 1))
    times = zip(tokens.arrived, tokens.entered, tokens.times, strict=True)
    requests = tuple(
        RequestRecord(arrived, round(entered, 6), tuple(round(each, 6) for each in found))
        for arrived, entered, found in times
    )
    steps = step_records(recorded.steps, tokens.begun)
    about = served.form, card, share.lengths, share.share, rate
    run.keep(SeenLoad(*about, dict(seen), requests, steps))
    return {
        "model": served.form.label,
        "held_out": served.held_out,
        "card": card,
        "in, out": share.lengths,
        "share": share.share,
        "rate": rate,
        "requests": len(load.dues),
        "seen": seen,
    }


def chosen(steps: Sequence[Sample]) -> list[Sample]:
    """Choose some of the steps, evenly over their shapes."""
    ordered = sorted(steps, key=lambda each: (each.shape.prompt_tokens, len(each.shape.contexts)))
    at = np.linspace(0, len(ordered) - 1, min(len(ordered), _PRINTED_STEPS))
    return [ordered[int(each)] for each in at]


def described(step: Sample) -> list[Any]:
    """Write a step as its decodes, their mean context, its chunks and its seconds."""
    contexts = step.shape.contexts
    mean = round(float(contexts.mean())) if len(contexts) else 0
    chunks = [[chunk.computed, chunk.tokens] for chunk in step.shape.chunks]
    return [len(contexts), mean, chunks, float(f"{step.seconds:.4g}")]


def errors(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Sum the relative errors up. A figure that was seen as 0 has none."""
    summed = {}
    for key in KEYS:
        off = [
            abs(each["predicted"][key] / each["seen"][key] - 1)
            for each in found
            if each["seen"][key] > 0
        ]
        if off:
            ends = {"median": float(np.median(off)), "p95": float(np.percentile(off, 95))}
            summed[key] = {name: round(value, 4) for name, value in ends.items()}
    return summed


def main() -> int:
    parser = argparse.ArgumentParser(description="Predictions beside loads on a GPU.")
    parser.add_argument("--seconds", type=float, default=240.0, help="that all pairs may take")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rates", type=Path, help="a folder with further tables of rates")
    parser.add_argument("--models", nargs="+", metavar="SHAPE[:FORMAT[:RANKS]]",
                        help="instead of the usual models")  # fmt: skip
    parser.add_argument("--record", type=Path, help="a file to keep steps and requests in")
    parser.add_argument("--recorded", type=Path, help="pairs of an earlier run; needs no card")
    parser.add_argument("--launch", type=float, help="seconds of a layer, of --recorded")
    args = parser.parse_args()
    ends_at = time.monotonic() + args.seconds
    tables = Tables.packaged(*([args.rates] if args.rates else []))
    if args.recorded is not None:
        again = []
        for pair in recorded(args.recorded, tables, args.launch):
            print(json.dumps(pair), flush=True)
            again.append(pair)
        print(json.dumps({"pairs": len(again), "errors": errors(again)}))
        return 0
    card = card_of(detect_device(args.device))
    run = Run(args.device, card, tables, ends_at, args.record)
    models = MODELS if args.models is None else [Served(Form.of(each)) for each in args.models]
    found = []
    for served in models:
        if run.is_over:
            break
        begun, label = time.monotonic(), served.form.label
        try:
            for each in pairs(run, served, LOADS):
                print(json.dumps(each), flush=True)
                found.append(each)
        except Exception as error:  # the other models may be served
            print(json.dumps({"model": label, "error": str(error)[:500]}), flush=True)
        print(json.dumps({"model": label, "seconds": round(time.monotonic() - begun, 1)}),
              flush=True)  # fmt: skip
    print(json.dumps({"pairs": len(found), "errors": errors(found)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
