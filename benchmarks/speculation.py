"""What speculation is worth: tokens per second with drafts and without, as a ratio of one run.

    python -m benchmarks.speculation [--model M] [--rows 1 16] [--drafts 5] [--turns 3]

Two engines of the same model in this process, one that drafts; each text is answered by both in
turns, so that what else the machine does meets both. Looping: greedy answers to a prompt that says
the same again and again, which random weights go on with; repeating: what was said becomes
likelier, so that the answer soon repeats itself (a penalty, which is sampled outside the graphs);
edit: a source file of this repository, to be said again (worth something with a model that can);
random: tokens drawn at a high temperature from prompts of random tokens. processor_ratio: of the
process's processor time, which other load on the machine changes less. Answers of both engines are
compared token by token. Last comes what the
drafter takes for a step of the most rows: launched as the engine does, and on a GPU by itself,
replayed as a graph. On a GPU e.g.

    python -m benchmarks.speculation --model Qwen/Qwen3-8B --rows 1 16 64 256 --output-tokens 256

With --acceptance a draft is made to hold with this probability (answers are nonsense then), for
weights that were never trained to draft: what speed follows from an acceptance.
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
from atom.speculative_config import SpeculativeConfig
from atom.tokenizer import Tokenizer
from benchmarks.drafter_time import make_up_acceptance, measure_drafter
from benchmarks.offline_engine import OfflineEngine

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "examples" / "models" / "atom-tiny"
TEXTS = ("looping", "repeating", "edit", "random")
_SOURCE = ROOT / "engine" / "atom" / "model_engine" / "schedule" / "token_runs.py"
_HOT = 1.5
_LOOP = 8

Ask = tuple[list[int], SamplingParams]


@dataclass(frozen=True, slots=True)
class Answered:
    """tokens: of each request; seconds, and processor_seconds of this process: of all together."""

    tokens: list[list[int]]
    seconds: float
    processor_seconds: float

    @property
    def rate(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def answer(engine: OfflineEngine, asks: Sequence[Ask]) -> Answered:
    """All requests at once, until the last has ended."""
    tokens: dict[int, list[int]] = {engine.add(*ask): [] for ask in asks}
    started, used = time.perf_counter(), time.process_time()
    while engine.has_work():
        result = engine.step()
        for number, run in result.runs() if result else ():
            tokens[number] += run
    seconds, processor = time.perf_counter() - started, time.process_time() - used
    return Answered(list(tokens.values()), seconds, processor)


class Workload:
    def __init__(self, engine: OfflineEngine, prompt_tokens: int, output_tokens: int) -> None:
        self._engine = engine
        self._prompt_tokens, self._output_tokens = prompt_tokens, output_tokens

    def asks(self, text: str, rows: int, turn: int) -> list[Ask]:
        """Prompts that no earlier turn had, so that no prefix is cached."""
        draw = np.random.default_rng(1000 * turn + rows)
        return [self._ask(text, draw, number) for number in range(rows)]

    def _ask(self, text: str, draw: np.random.Generator, number: int) -> Ask:
        length, chosen = self._output_tokens, dict[str, object]()
        prompt = self._engine.random_prompt(self._prompt_tokens, draw)
        if text == "looping":
            prompt = (prompt[:_LOOP] * len(prompt))[: len(prompt)]
        elif text == "edit":
            source = f"{draw.integers(1 << 30)}\n{_SOURCE.read_text()}"
            asked = f"Say this again, with `rows` renamed to `table`:\n{source}\nHere it is:\n"
            tokenizer = Tokenizer(self._engine.config.model.path)  # random weights have none
            prompt = tokenizer.encode(asked, add_special_tokens=False)
            prompt = prompt[: self._engine.config.model.max_model_len - length]
        elif text == "repeating":
            chosen = {"frequency_penalty": -2.0}
        heat = _HOT if text == "random" else 0.0
        params = SamplingParams(
            temperature=heat, seed=number, max_tokens=length, ignore_eos=True,
            **chosen,  # type: ignore[arg-type]
        )  # fmt: skip
        return prompt, params


def compare(
    engines: tuple[OfflineEngine, OfflineEngine],
    work: Workload,
    text: str,
    args: argparse.Namespace,
) -> list[dict[str, object]]:
    """A row of results for each number of rows."""
    found = []
    for rows in args.rows:
        before = engines[1].scheduler.stats()
        rates: tuple[list[float], list[float]] = ([], [])
        processor = []  # of one without drafts, for each with
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
            "processor_ratio": round(statistics.median(processor), 3),
            "acceptance": round(accepted / max(tokens, 1), 3),
            "length": round(1 + accepted / max(drafts, 1), 2),
            "length_by_formula": formula_length(args),
            "differing": differing,
        })  # fmt: skip
    return found


def formula_length(args: argparse.Namespace) -> float | None:
    """Tokens of a row and step where each of a fixed number of drafts holds with one chance."""
    if args.acceptance is None or not args.fixed:
        return None
    length: float = sum(args.acceptance**k for k in range(args.drafts + 1))
    return round(length, 2)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--load-dummy", action="store_true", help="random weights")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--method", default="ngram", help="ngram, mtp or eagle3")
    parser.add_argument("--draft-model", default=None, help="of method eagle3")
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
    work = Workload(engines[0], args.prompt_tokens, args.output_tokens)
    for text in args.texts:
        for row in compare(engines, work, text, args):
            results.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    drafter = measure_drafter(engines[1], max(args.rows), args.drafts)
    print("  ".join(f"{key} {value}" for key, value in drafter.items()), flush=True)
    told = {"device": engines[0].report.device, "results": results, "drafter": drafter}
    print(json.dumps(told))
    return 0


def _engines(args: argparse.Namespace) -> tuple[OfflineEngine, OfflineEngine]:
    """Without drafts, and with; each has as much of the device's memory as the other."""
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
            gpu_memory_utilization=share,
        )
        for asked, share in ((None, 0.45), (speculative, 0.9))
    )  # fmt: skip
    if args.acceptance is not None:
        make_up_acceptance(on, args.acceptance)
    return off, on


if __name__ == "__main__":
    sys.exit(main())
