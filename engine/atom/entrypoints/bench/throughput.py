"""`atom bench throughput`: all requests submitted at once, until the last is answered."""

from __future__ import annotations

import argparse
import time

from atom.entrypoints.bench.acceptance_report import acceptance, counted_drafts
from atom.entrypoints.bench.report import Value, latency_summary, print_report
from atom.entrypoints.bench.workload import adapters_in_turn, random_prompts
from atom.entrypoints.flags.engine_args import config_from_args
from atom.entrypoints.process.logs import configure_logging
from atom.model_engine.llm_engine import Completion, LLMEngine
from atom.sampling_params import SamplingParams


def run(args: argparse.Namespace) -> int:
    configure_logging(args.log_level)
    config = config_from_args(args)
    prompts = random_prompts(args.num_prompts, args.input_len, config.model.vocab_size, args.seed)
    params = SamplingParams(max_tokens=args.output_len, ignore_eos=True)
    models = adapters_in_turn(config, args.num_prompts)
    with LLMEngine(config=config) as engine:
        warm_up = random_prompts(1, args.input_len, config.model.vocab_size, args.seed + 1)
        engine.generate(warm_up, params, use_tqdm=False, model=models[:1])
        before = counted_drafts(engine.stats)
        started = time.perf_counter()
        answers = engine.generate(prompts, params, model=models)
        elapsed_seconds = time.perf_counter() - started
        held = acceptance(before, counted_drafts(engine.stats))
    report = summary(answers, elapsed_seconds) | held
    print_report(f"throughput of {config.model.served_name}", report)
    return 0


def summary(answers: list[Completion], elapsed_seconds: float) -> dict[str, Value]:
    inputs = sum(answer["num_tokens_input"] for answer in answers)
    outputs = sum(answer["num_tokens_output"] for answer in answers)
    return {
        "requests": len(answers),
        "input_tokens": inputs,
        "output_tokens": outputs,
        "elapsed_s": round(elapsed_seconds, 4),
        "requests_per_s": round(len(answers) / elapsed_seconds, 3),
        "output_tokens_per_s": round(outputs / elapsed_seconds, 3),
        "total_tokens_per_s": round((inputs + outputs) / elapsed_seconds, 3),
        **latency_summary("ttft", [answer["ttft"] for answer in answers]),
        **latency_summary("tpot", [answer["tpot"] for answer in answers]),
    }
