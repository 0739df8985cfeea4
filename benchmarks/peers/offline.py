"""One engine on one checkpoint, asked by the `LLM` class that offline engines offer.

    python -m benchmarks.peers.offline --engine vllm:LLM --model FOLDER \\
        --options '{"dtype": "bfloat16"}'
    python -m benchmarks.peers.offline --engine atom:LLMEngine --model FOLDER

Any engine will do whose class takes `model=` and whose `generate(prompts, sampling_params,
use_tqdm=False)` takes prompts of token ids, with a `SamplingParams` in the same module that has
`temperature`, `max_tokens` and `ignore_eos`. Nothing but the standard library is imported beside
the engine, so that the module runs in the peer's own Python. Both engines are asked by the same
lines and timed by the same clock: what an engine does outside its steps counts for both.
`benchmarks.peers.beside` runs two engines on one checkpoint. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workloads.nano_workload import nano_requests

DECODE_CONTEXT = 1024
# A step's time is what separates answers of so many tokens: prompts and starts cancel out.
DECODE_SHORT, DECODE_LONG = 16, 144
PREFILL = (16, 4096)
LONG_PREFILL = (4, 32_768)
ROUNDS = 3
# Left to peers by their own names: no text is wanted, and a random checkpoint has no tokenizer.
PEER_OPTIONS = {
    "vllm": {"skip_tokenizer_init": True, "enable_prefix_caching": False},
    "atom": {"enable_prefix_caching": False},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """An engine, and how its prompts and its limits are written."""

    generate: Callable[..., Any]
    params: Callable[..., Any]
    in_dicts: bool
    no_text: bool
    vocabulary: int

    def run(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> float:
        """Seconds in which the prompts were answered with so many tokens each."""
        wanted = [self._limits(count) for count in counts]
        asked = [{"prompt_token_ids": list(p)} if self.in_dicts else list(p) for p in prompts]
        started = time.perf_counter()
        answers = self.generate(asked, wanted, use_tqdm=False)
        seconds = time.perf_counter() - started
        found = [len(_tokens(answer)) for answer in answers]
        if found != list(counts):
            raise SystemExit(f"asked for {list(counts)[:4]}… tokens, and got {found[:4]}…")
        return seconds

    def _limits(self, count: int) -> Any:
        said = {"temperature": 0.6, "max_tokens": count, "ignore_eos": True}
        return self.params(**said, detokenize=False) if self.no_text else self.params(**said)

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        draw = random.Random(seed)
        return [[draw.randrange(self.vocabulary) for _ in range(length)] for _ in range(count)]


def _tokens(answer: Any) -> Sequence[int]:
    if isinstance(answer, dict):
        tokens: Sequence[int] = answer["token_ids"]
        return tokens
    found: Sequence[int] = answer.outputs[0].token_ids
    return found


def opened(engine: str, model: str, options: dict[str, Any]) -> Asked:
    """Start the engine that `module:Class` names."""
    module_name, _, class_name = engine.partition(":")
    module = importlib.import_module(module_name)
    family = module_name.partition(".")[0]
    llm = getattr(module, class_name)(model=model, **{**PEER_OPTIONS.get(family, {}), **options})
    params = module.SamplingParams
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    return Asked(
        generate=llm.generate,
        params=params,
        in_dicts=family != "atom",
        no_text="detokenize" in inspect.signature(params).parameters,
        vocabulary=vocabulary,
    )


def decode(asked: Asked, rows: int) -> dict[str, float]:
    """Milliseconds a step of `rows` decodes behind a context of about 1,024 tokens."""
    prompts = asked.prompts(rows, DECODE_CONTEXT - DECODE_LONG // 2, seed=1)
    asked.run(prompts, [DECODE_SHORT] * rows)
    taken = []
    for _ in range(ROUNDS):
        short = asked.run(prompts, [DECODE_SHORT] * rows)
        long = asked.run(prompts, [DECODE_LONG] * rows)
        taken.append((long - short) / (DECODE_LONG - DECODE_SHORT))
    return {"ms_per_step": statistics.median(taken) * 1e3}


def prefill(asked: Asked, shape: tuple[int, int]) -> dict[str, float]:
    """Prompt tokens a second of so many prompts of so many tokens, each answered by one."""
    count, length = shape
    taken = []
    for seed in range(ROUNDS + 1):  # the first is a warm-up; no prompt comes twice
        taken.append(asked.run(asked.prompts(count, length, seed), [1] * count))
    return {"tokens_per_second": count * length / statistics.median(taken[1:])}


def nano(asked: Asked) -> dict[str, float]:
    """Output tokens a second of the published workload of 256 requests."""
    requests = nano_requests()
    prompts = [[token % asked.vocabulary for token in each.prompt] for each in requests]
    counts = [each.output_tokens for each in requests]
    asked.run(prompts, [8] * len(prompts))
    return {"output_tokens_per_second": sum(counts) / asked.run(prompts, counts)}


def measure(asked: Asked, wanted: Sequence[str], rows: Sequence[int]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    if "decode" in wanted:
        results["decode"] = {str(count): decode(asked, count) for count in rows}
    if "prefill" in wanted:
        results["prefill"] = prefill(asked, PREFILL)
    if "long" in wanted:
        results["long"] = prefill(asked, LONG_PREFILL)
    if "nano" in wanted:
        results["nano"] = nano(asked)
    return results


WORKLOADS = ("decode", "prefill", "long", "nano")


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=["decode", "nano"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One engine's offline figures.")
    parser.add_argument("--engine", required=True, help="module:Class, such as vllm:LLM")
    parser.add_argument("--model", required=True, help="a folder with config.json and weights")
    parser.add_argument("--options", type=json.loads, default={}, help="of the class, as JSON")
    add_workload_arguments(parser)
    args = parser.parse_args(argv)
    started = time.perf_counter()
    asked = opened(args.engine, args.model, args.options)
    start = time.perf_counter() - started
    results = measure(asked, args.workload, args.rows)
    print(json.dumps({"engine": args.engine, "start_seconds": start, **results}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
