"""What speculation is worth: tokens per second with drafts and without, as a ratio of one run.

    python -m benchmarks.speculation [--model M] [--rows 1 16] [--drafts 5] [--turns 3]

Two engines of the same model in this process, one that drafts; each text is answered by both in
turns, so that what else the machine does meets both. Edit, json, quote: texts that say again what
was said, whose answers are given (benchmarks.drafts.said_texts), for weights that were never
trained; repeating: what was said becomes likelier, so that the answer soon repeats itself (a
penalty, which is sampled outside the graphs); random: tokens drawn at a high temperature from
prompts of random tokens. decode_ratio: while all requests run, without prompts and without those
that end later than others; processor_ratio: of the process's processor time, which other load on
the machine changes less. Answers of both engines are compared token by token. Last comes what the
proposer takes for a step of the most rows: launched as the engine does, and on a GPU by itself,
replayed as a graph. On a GPU e.g.

    python -m benchmarks.speculation --model Qwen/Qwen3-8B --rows 1 16 64 256 --output-tokens 256

With --acceptance a draft is made to hold with this probability (answers are nonsense then), for
weights that were never trained to draft; with --fixed, too, length and ratio are also said as they
follow from it, by what steps took when they were timed at the start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atom.sampling_params import SamplingParams
from atom.speculation.measured_cost import MeasuredCost
from atom.speculative_config import SpeculativeConfig
from benchmarks.drafts.drafter_time import (
    drafted_step_cost,
    make_up_acceptance,
    measure_drafter,
    own_runner,
)
from benchmarks.drafts.said_texts import SAID, SaidText, Sayer, TextSize, said_text
from benchmarks.engines.offline_engine import OfflineEngine

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "examples" / "models" / "atom-tiny"
TEXTS = (*SAID, "repeating", "random")
_HOT = 1.5
_MEMORY = 0.45

Ask = tuple[list[int], SamplingParams]
Engines = tuple[OfflineEngine, OfflineEngine]  # without drafts, and with


@dataclass(frozen=True, slots=True)
class Answered:
    """Times of requests that were answered together. tokens: of each request; seconds, and
    processor_seconds of this process: of all together. decoded of the tokens came in
    decode_seconds, while all requests ran: from when each had its first until one had its last."""

    tokens: list[list[int]]
    seconds: float
    processor_seconds: float
    decoded: int
    decode_seconds: float

    @property
    def rate(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds

    @property
    def decode_rate(self) -> float:
        return self.decoded / self.decode_seconds


def answer(engine: OfflineEngine, asks: Sequence[Ask]) -> Answered:
    """All requests at once, until the last has ended."""
    tokens: dict[int, list[int]] = {engine.add(*ask): [] for ask in asks}
    least = min(params.max_tokens or 0 for _, params in asks)
    started, used = time.perf_counter(), time.process_time()
    seen: list[tuple[float, int]] = []  # when all requests ran: seconds, tokens so far
    while engine.has_work():
        result = engine.step()
        for number, run in result.runs() if result else ():
            tokens[number] += run
        if all(0 < len(said) < least for said in tokens.values()):
            seen.append((time.perf_counter(), sum(map(len, tokens.values()))))
    ended, processor = time.perf_counter(), time.process_time() - used
    if len(seen) < 2:
        raise SystemExit("requests end before all have begun; ask for more --output-tokens")
    (began, before), (until, after) = seen[0], seen[-1]
    return Answered(
        list(tokens.values()), ended - started, processor, after - before, until - began
    )


class Workload:
    """Requests to two engines of a model, one with drafts."""

    def __init__(self, engines: Engines, args: argparse.Namespace) -> None:
        self._engine = engines[0]
        self._prompt_tokens, self._output_tokens = args.prompt_tokens, args.output_tokens
        self._sayers: list[Sayer] = []
        if set(args.texts) & set(SAID):
            longest = self._engine.config.model.max_model_len
            self._sayers = [Sayer(own_runner(engine).steps, longest) for engine in engines]

    def asks(self, text: str, rows: int, turn: int) -> list[Ask]:
        """Prompts that no earlier turn had, so that no prefix is cached."""
        draw = np.random.default_rng(1000 * turn + rows)
        said = None
        if text in SAID:
            model = self._engine.config.model
            size = TextSize(model.max_model_len - 1, self._output_tokens, model.vocab_size)
            said = said_text(text, size, draw)
        for sayer in self._sayers:
            sayer.say(said)
        return [self._ask(text, draw, number, said) for number in range(rows)]

    def _ask(self, text: str, draw: np.random.Generator, number: int, said: SaidText | None) -> Ask:
        prompt = self._engine.random_prompt(self._prompt_tokens, draw)
        if said is not None:
            prompt = [prompt[0], *said.prompt[1:]]
        length = self._output_tokens if said is None else len(said.answer)
        params = SamplingParams(
            temperature=_HOT if text == "random" else 0.0, seed=number, max_tokens=length,
            frequency_penalty=-2.0 if text == "repeating" else 0.0, ignore_eos=True,
        )  # fmt: skip
        return prompt, params


def compare(
    engines: Engines,
    work: Workload,
    text: str,
    args: argparse.Namespace,
    cost: MeasuredCost | None,
) -> list[dict[str, object]]:
    """A row of results for each number of rows."""
    found = []
    for rows in args.rows:
        before = engines[1].scheduler.stats()
        rates: tuple[list[float], list[float]] = ([], [])
        decoding, processor = [], []  # of one without drafts, for each with
        differing = 0
        for turn in range(args.turns + 1):
            asks = work.asks(text, rows, turn)
            pair = [answer(engine, asks) for engine in engines]
            differing += sum(
                one != two for one, two in zip(pair[0].tokens, pair[1].tokens, strict=True)
            )
            if turn:  # the first warms both up
                for list_, answered in zip(rates, pair, strict=True):
                    list_.append(answered.rate)
                decoding.append(pair[1].decode_rate / pair[0].decode_rate)
                processor.append(pair[0].processor_seconds / pair[1].processor_seconds)
        after = engines[1].scheduler.stats()
        drafts = after.drafts_total - before.drafts_total
        tokens = after.draft_tokens_total - before.draft_tokens_total
        accepted = after.accepted_tokens_total - before.accepted_tokens_total
        found.append({
            "text": text, "rows": rows,
            "off_tokens_per_s": round(statistics.median(rates[0]), 1),
            "on_tokens_per_s": round(statistics.median(rates[1]), 1),
            "ratio": round(statistics.median(b / a for a, b in zip(*rates, strict=True)), 3),
            "decode_ratio": round(statistics.median(decoding), 3),
            "processor_ratio": round(statistics.median(processor), 3),
            "acceptance": round(accepted / max(tokens, 1), 3),
            "length": round(1 + accepted / max(drafts, 1), 2),
            **by_formula(args, rows, cost),
            "differing": differing,
        })  # fmt: skip
    return found


def by_formula(args: argparse.Namespace, rows: int, cost: MeasuredCost | None) -> dict[str, object]:
    """Tokens of a row and step where each of a fixed number of drafts holds with one chance, and
    with what steps take the ratio that follows."""
    if args.acceptance is None or not args.fixed:
        return {}
    length: float = sum(args.acceptance**k for k in range(args.drafts + 1))
    told: dict[str, object] = {"length_by_formula": round(length, 2)}
    if cost is not None:
        plain, drafted = cost.of_steps(rows, np.array([0.0, args.drafts]))
        told["ratio_by_formula"] = round(length * plain / drafted, 3)
    return told


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--load-dummy", action="store_true", help="random weights")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument(
        "--method", default="ngram", help="ngram, suffix, mtp, eagle3 or draft_model"
    )
    parser.add_argument("--draft-model", default=None, help="of methods eagle3 and draft_model")
    parser.add_argument("--acceptance", type=float, default=None, help="of each draft, made up")
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--fixed", action="store_true", help="as many drafts as may be, always")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--max-model-len", type=int, default=None)
    args = parser.parse_args(argv)
    results = []
    engines = _engines(args)
    cost = drafted_step_cost(engines[1]) if args.acceptance is not None else None
    work = Workload(engines, args)
    for text in args.texts:
        for row in compare(engines, work, text, args, cost):
            results.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    proposer = measure_drafter(engines[1], max(args.rows), args.drafts)
    print("  ".join(f"{key} {value}" for key, value in proposer.items()), flush=True)
    told = {"device": engines[0].report.device, "results": results, "proposer": proposer}
    print(json.dumps(told))
    return 0


def _engines(args: argparse.Namespace) -> Engines:
    """Build engines without drafts, and with. Each has a share of the device's memory: what this
    process holds itself is not counted as another's."""
    speculative = SpeculativeConfig(
        method=args.method,
        draft_model=args.draft_model,
        num_tokens=args.drafts,
        adaptive=not args.fixed,
    )
    off, on = (
        OfflineEngine(
            args.model, load_dummy=args.load_dummy, dtype=args.dtype, speculative=asked,
            max_num_seqs=max(args.rows), max_model_len=args.max_model_len,
            gpu_memory_utilization=_MEMORY,
        )
        for asked in (None, speculative)
    )  # fmt: skip
    if args.acceptance is not None:
        make_up_acceptance(on, args.acceptance)
    return off, on


if __name__ == "__main__":
    sys.exit(main())
