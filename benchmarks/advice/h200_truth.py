"""Loads on a GPU beside the advisor's predictions of them, with the GPU's own table of rates.

    python -m benchmarks.advice.h200_truth --seconds 240
    python -m benchmarks.advice.h200_truth --recorded benchmarks/advice/h200_pairs.json

Engines of public shapes with random weights run one after the other in this process, each under
open loops from idle to more than it serves. Prints one JSON object a line as soon as it is known:
each pair of what was seen and what was predicted, with some of its steps, and the errors of all.
A run that is cut keeps what was printed. Some models are named as held out: a fit of rates to
the steps of a run leaves them out, and its errors are those of the held-out models. `--recorded`
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
from atom.advisor.rates import Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Fleet, simulate
from atom.advisor.slo import Figures, Metric, Slo, figures_of
from atom.advisor.step_time import StepTimer
from atom.errors import AtomError
from atom.sizing import ModelFacts, online_scheme
from atom.sizing.cards import CARDS, Card
from atom.utils.device import detect_device
from benchmarks.advice.loads import EqualLoad, most_rate
from benchmarks.advice.open_loop import serve
from benchmarks.engines.offline_engine import OfflineEngine, free_memory
from benchmarks.step_rates.measure import card_of, config_of
from benchmarks.step_rates.recorded_steps import RecordedEngine, Sample

SLO = Slo({Metric.TTFT: 0.5, Metric.TPOT: 0.025})
KEYS = ("ttft p50", "ttft p90", "itl p50", "tpot p90", "requests/s", "goodput/s")
_ARRIVAL_SECONDS, _MOST_REQUESTS, _LEAST_REQUESTS = 5.0, 400, 12
_PRINTED_STEPS = 24
_MAX_MODEL_LEN, _MAX_NUM_SEQS = 8192, 256


@dataclass(frozen=True, slots=True)
class Served:
    """A shape in a format. held_out: no fit may read its steps."""

    shape: str
    quantization: str | None = None
    held_out: bool = False

    @property
    def label(self) -> str:
        return self.shape if self.quantization is None else f"{self.shape} {self.quantization}"


@dataclass(frozen=True, slots=True)
class Share:
    """A load: tokens of prompts and answers, and the share of the rate that steps alone allow."""

    lengths: tuple[int, int]
    share: float


MODELS = (
    Served("qwen3-0.6b"),
    Served("qwen3-8b"),
    Served("qwen3-4b", held_out=True),
    Served("qwen3-8b", "fp8"),
    Served("qwen3-4b", "fp8", held_out=True),
    Served("qwen3-30b-a3b", held_out=True),
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
    def of(cls, facts: ModelFacts, card: Card, tables: Tables) -> Predictor:
        division = Division(facts, card, 1)
        form = plan_form(division, _MAX_NUM_SEQS, _MAX_MODEL_LEN)
        limits = replace(form.limits, prefix_caching=False, max_model_len=_MAX_MODEL_LEN)
        work = model_work(
            facts, division.kv, division.sharding, element_bytes=division.element_bytes
        )
        return cls(replace(form, limits=limits), StepTimer(work, card, tables.rates(card)))

    def launching_in(self, seconds: float) -> Predictor:
        """Return the predictor with other seconds for a layer of a step that no graph holds."""
        rates = self.timer.rates
        changed = msgspec.structs.replace(rates.seconds, launch=seconds)
        return replace(self, timer=replace(self.timer, rates=replace(rates, seconds=changed)))

    def most_rate(self, lengths: tuple[int, int]) -> float:
        """Return the requests per second that steps alone allow."""
        return most_rate(self.timer, _MAX_NUM_SEQS // 2, lengths)

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
        predictor = Predictor.of(ModelFacts.from_hf_config(config_of(pair["model"])), card, tables)
        if launch is not None:
            predictor = predictor.launching_in(launch)
        prompt, answer = pair["in, out"]
        load = load_at(pair["rate"], (prompt, answer))
        yield {**pair, "predicted": figures(predictor.predict(load))}


def started(served: Served, folder: Path, device: str) -> OfflineEngine:
    """Start an engine of a shape with random weights."""
    (folder / "config.json").write_text(json.dumps(config_of(served.shape)))
    options: dict[str, Any] = {} if served.quantization is None else {
        "quantization": served.quantization
    }  # fmt: skip
    return OfflineEngine(
        str(folder),
        load_dummy=True,
        device=device,
        max_model_len=_MAX_MODEL_LEN,
        max_num_seqs=_MAX_NUM_SEQS,
        enable_prefix_caching=False,
        **options,
    )


def pairs(
    served: Served, loads: Sequence[Share], device: str, tables: Tables, ends_at: float
) -> Iterator[dict[str, Any]]:
    """Yield what was seen and predicted of a model under each load, until a time is over."""
    card = card_of(detect_device(device))
    facts = ModelFacts.from_hf_config(config_of(served.shape))
    if served.quantization is not None:
        facts = facts.stored_as(online_scheme(served.quantization))
    predictor = Predictor.of(facts, card, tables)
    with tempfile.TemporaryDirectory() as folder:
        engine = started(served, Path(folder), device)
        recorded = RecordedEngine(engine)
        serve(engine, load_of(Share(loads[0].lengths, 1.0), 4.0), 10.0)  # not measured: first steps
        for share in loads:
            load = load_of(share, predictor.most_rate(share.lengths))
            if time.monotonic() > ends_at:
                break
            recorded.steps.clear()
            seen = serve(engine, load, 6.0 * _ARRIVAL_SECONDS)
            yield {
                "model": served.label,
                "held_out": served.held_out,
                "card": card.name,
                "in, out": share.lengths,
                "share": share.share,
                "requests": len(load.dues),
                "seen": figures(figures_of(seen, SLO, load.prompt_tokens, 1)),
                "predicted": figures(predictor.predict(load)),
                "steps": [described(each) for each in chosen(recorded.steps)],
            }
        engine.close()
    del engine, recorded
    free_memory()


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
    parser.add_argument("--shapes", nargs="+", help="shapes instead of the usual models")
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
    models = MODELS if args.shapes is None else tuple(map(Served, args.shapes))
    found = []
    for served in models:
        if time.monotonic() > ends_at:
            break
        begun = time.monotonic()
        try:
            for pair in pairs(served, LOADS, args.device, tables, ends_at):
                print(json.dumps(pair), flush=True)
                found.append(pair)
        except (AtomError, RuntimeError) as error:  # the other models may be served
            print(json.dumps({"model": served.label, "error": str(error)[:500]}), flush=True)
        print(json.dumps({"model": served.label, "seconds": round(time.monotonic() - begun, 1)}),
              flush=True)  # fmt: skip
    print(json.dumps({"pairs": len(found), "errors": errors(found)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
