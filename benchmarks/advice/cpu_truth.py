"""Served loads on this machine's CPU beside what the advisor predicts of them.

    python -m benchmarks.advice.cpu_truth --seconds 600

The table of rates is measured first, unless `--rates` names one. Shapes and loads are none of the
table's. Each shape is one server, which `atom bench serve` asks at several rates; the advisor
simulates the same arrivals. A first server of one of the table's shapes measures what serving adds
to a step, to each of its rows and to a request. Run it on an idle machine: its load is printed
and not corrected for. Prints a Markdown row as soon as a pair is known, so that a run that is cut
keeps its pairs; the last line is one JSON object of the errors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atom.advisor.operations import model_work
from atom.advisor.rates import Rates, Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Fleet, Server, simulate
from atom.advisor.step_time import StepTimer
from atom.sizing import ModelFacts
from atom.sizing.cards import Card
from benchmarks.advice.loads import EqualLoad, most_rate
from benchmarks.engines.server_process import Server as Process
from benchmarks.engines.server_process import started_server
from benchmarks.served import write_tokenizer
from benchmarks.step_rates.measure import CPU_CONFIGS, DEFAULT_SHAPES, measure_rates
from benchmarks.workloads.shapes import SHAPES

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "load_dummy": True,
    "max_model_len": 1024,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
}
UNSEEN: dict[str, dict[str, int]] = {
    "320 x 6": {"hidden_size": 320, "intermediate_size": 896, "num_hidden_layers": 6},
    "128 x 8": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 8},
    "256 x 5": {"num_hidden_layers": 5, "intermediate_size": 1024, "vocab_size": 20_000},
}
LENGTHS = ((32, 32), (128, 16), (256, 64))
SHARES = (0.15, 0.4, 0.7, 0.9)  # of the rate that steps alone allow
MOST_REQUESTS, LEAST_REQUESTS, ARRIVAL_SECONDS = 30, 16, 5.0
CALIBRATED = "cpu-wide"
KEYS = ("ttft p50", "ttft p90", "itl p50", "requests/s")
_HALVINGS = 8
_BURST, _AT_ONCE = 16, 1e4  # requests that come at once, for what a row adds; their rate


@dataclass(frozen=True, slots=True)
class Model:
    """A shape with its timer, served by engines of the same options."""

    name: str
    config: dict[str, Any]
    card: Card
    rates: Rates

    @property
    def timer(self) -> StepTimer:
        facts = ModelFacts.from_hf_config(self.config)
        division = Division(facts, self.card, 1)
        work = model_work(facts, division.kv, division.sharding, element_bytes=4)
        return StepTimer(work, self.card, self.rates)

    def predict(self, load: EqualLoad) -> dict[str, float]:
        """Return the predicted figures by the names in KEYS, in seconds."""
        facts = ModelFacts.from_hf_config(self.config)
        form = plan_form(Division(facts, self.card, 1), OPTIONS["max_num_seqs"], 1024)
        limits = replace(
            form.limits,
            max_num_batched_tokens=OPTIONS["max_num_batched_tokens"],
            prefix_caching=False,
        )
        seconds = self.rates.seconds
        server = Server(seconds.request, seconds.token, seconds.accept)
        fleet = Fleet(replace(form, limits=limits), self.timer.seconds, server=server)
        outcome = simulate(fleet, load)
        served = [each for each in outcome.served if each]
        first = [each.ttft for each in served]  # of all: the client has its own warm-up
        return {
            "ttft p50": float(np.percentile(first, 50)),
            "ttft p90": float(np.percentile(first, 90)),
            "itl p50": float(np.percentile(outcome.gap_seconds, 50)),
            "requests/s": len(served) / max(each.last for each in served),
        }


def measure(server: Process, lengths: tuple[int, int], rate: float, count: int) -> dict[str, float]:
    """Ask a server by `atom bench serve`; seconds."""
    words = [sys.executable, "-m", "atom.entrypoints.cli", "bench", "serve"]
    words += ["--base-url", server.address, "--num-prompts", str(count), "--disable-tqdm"]
    words += ["--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
    words += [
        "--request-rate",
        f"{rate:.6g}",
        "--num-warmups",
        "2",
        "--metric-percentiles",
        "50,90",
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    return {
        "ttft p50": report["p50_ttft_ms"] / 1e3,
        "ttft p90": report["p90_ttft_ms"] / 1e3,
        "itl p50": report["p50_itl_ms"] / 1e3,
        "requests/s": report["request_throughput"],
    }


def served(config: dict[str, Any], folder: Path) -> Any:
    """Start a server of a shape, with random weights and a made-up tokenizer."""
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config["vocab_size"])
    return started_server(folder, OPTIONS, "--disable-access-log")


def calibrated(card: Card, rates: Rates) -> Rates:
    """Add to the rates what serving takes beside them: of one of the table's shapes, one request at
    a time."""
    model = Model(CALIBRATED, dict(CPU_CONFIGS[CALIBRATED]), card, rates)
    lengths = (64, 32)
    with tempfile.TemporaryDirectory() as name, served(model.config, Path(name)) as server:
        found = measure(server, lengths, 0.5, 8)
        expected = model.predict(EqualLoad.at_rate(8, 0.5, lengths))
        many = measure(server, lengths, _AT_ONCE, _BURST)
    beside = max(0.0, found["itl p50"] - expected["itl p50"])
    first = max(0.0, found["ttft p50"] - expected["ttft p50"] - beside)
    seconds = rates.seconds
    more = {"step": seconds.step + beside, "request": seconds.request + first}
    alone = replace(rates, seconds=msgspec.structs.replace(seconds, **more))
    burst = EqualLoad.at_rate(_BURST, _AT_ONCE, lengths)
    together = replace(model, rates=alone).predict(burst)
    row = max(0.0, many["itl p50"] - together["itl p50"]) / _BURST
    more["row"] = seconds.row + row
    together_rates = replace(rates, seconds=msgspec.structs.replace(seconds, **more))
    return accepting(replace(model, rates=together_rates), burst, many["ttft p50"])


def accepting(model: Model, burst: EqualLoad, ttft: float) -> Rates:
    """Divide the seconds of a request into those in which the server takes no other one, by the
    median first token of requests that came at once, and the rest."""
    low, high = 0.0, model.rates.seconds.request
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        seconds = msgspec.structs.replace(model.rates.seconds, accept=middle)
        tried = replace(model, rates=replace(model.rates, seconds=seconds))
        if tried.predict(burst)["ttft p50"] < ttft:
            low = middle
        else:
            high = middle
    return replace(model.rates, seconds=msgspec.structs.replace(model.rates.seconds, accept=high))


def pairs(model: Model) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield the lengths and rates of a shape's loads."""
    for lengths, share in itertools.product(LENGTHS, SHARES):
        yield lengths, share * most_rate(model.timer, OPTIONS["max_num_seqs"] // 2, lengths)


def requests_at(rate: float) -> int:
    """Return how many requests a load has: those of some seconds, within bounds."""
    return min(MOST_REQUESTS, max(LEAST_REQUESTS, round(rate * ARRIVAL_SECONDS)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Predictions beside served loads on this CPU.")
    parser.add_argument("--rates", type=Path, help="this machine's table; default: measured first")
    parser.add_argument("--pairs", type=int, default=30, help="shapes and loads, at most 36")
    parser.add_argument("--seconds", type=float, default=600.0, help="that all may take")
    args = parser.parse_args()
    ends_at = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory() as folder:
        path = args.rates
        if path is None:
            path = Path(folder) / "cpu.json"
            measure_rates(path, DEFAULT_SHAPES, "cpu")
        tables = Tables.of(path.parent)
    card = tables.card("cpu")
    if card is None:
        print(f"error: {path.parent} has no table of the card cpu", file=sys.stderr)
        return 1
    rates = calibrated(card, tables.rates(card))
    print(f"beside steps: {rates.seconds}")
    print(f"load of the machine {os.getloadavg()[0]:.1f}, of the table "
          f"{tables.by_card['cpu'].source.load:.1f}\n")  # fmt: skip
    errors = list(compare(card, rates, args.pairs, ends_at))
    print()
    result: dict[str, Any] = {"pairs": len(errors), "load": os.getloadavg()[0]}
    for key in KEYS if errors else ():
        off = [abs(each[key]) for each in errors]
        result[key] = {"median": float(np.median(off)), "p95": float(np.percentile(off, 95))}
        print(f"{key}: median {np.median(off):.0%}, 95 % {np.percentile(off, 95):.0%}")
    print(json.dumps(result))
    return 0


def compare(card: Card, rates: Rates, most: int, ends_at: float) -> Iterator[dict[str, float]]:
    """Print a row for each pair until a time, and yield its relative errors."""
    print(
        "| shape | in, out | rate | " + " | ".join(f"{key}: seen, predicted" for key in KEYS) + " |"
    )
    print("|---|---|---:|" + "---|" * len(KEYS))
    left = most
    for name, changes in UNSEEN.items():
        model = Model(name, {**SHAPES["tiny-12k"], **changes}, card, rates)
        loads = list(pairs(model))[: max(0, min(left, -(-most // len(UNSEEN))))]
        left -= len(loads)
        with tempfile.TemporaryDirectory() as folder, served(model.config, Path(folder)) as server:
            for lengths, rate in loads:
                if time.monotonic() > ends_at:
                    return
                count = requests_at(rate)
                seen = measure(server, lengths, rate, count)
                found = model.predict(EqualLoad.at_rate(count, rate, lengths))
                cells = (f"{seen[key]:.4g}, {found[key]:.4g}" for key in KEYS)
                print(f"| {name} | {lengths} | {rate:.2f} | {' | '.join(cells)} |", flush=True)
                yield {key: found[key] / seen[key] - 1 for key in KEYS}


if __name__ == "__main__":
    sys.exit(main())
