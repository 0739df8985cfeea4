"""`atom bench latency`: batches one after another; how long each takes from start to end."""

from __future__ import annotations

import argparse
import time

from atom.entrypoints.bench.report import latency_summary, print_report
from atom.entrypoints.bench.workload import adapters_in_turn, random_prompts
from atom.entrypoints.flags.engine_args import config_from_args
from atom.entrypoints.process.logs import configure_logging
from atom.errors import ConfigError
from atom.model_engine.llm_engine import Completion, LLMEngine
from atom.sampling_params import SamplingParams


def run(args: argparse.Namespace) -> int:
    configure_logging(args.log_level)
    if args.num_iters < 1:
        raise ConfigError("--num-iters must be at least 1")
    config = config_from_args(args)
    params = SamplingParams(max_tokens=args.output_len, ignore_eos=True)
    batch_seconds: list[float] = []
    answers: list[Completion] = []
    models = adapters_in_turn(config, args.batch_size)
    with LLMEngine(config=config) as engine:
        for iteration in range(args.num_warmup_iters + args.num_iters):
            prompts = random_prompts(
                args.batch_size, args.input_len, config.model.vocab_size, args.seed + iteration
            )
            started = time.perf_counter()
            batch = engine.generate(prompts, params, use_tqdm=False, model=models)
            if iteration >= args.num_warmup_iters:
                batch_seconds.append(time.perf_counter() - started)
                answers += batch
    report = {
        "batch_size": args.batch_size,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "iterations": args.num_iters,
        **latency_summary("batch", batch_seconds),
        **latency_summary("ttft", [answer["ttft"] for answer in answers]),
        **latency_summary("tpot", [answer["tpot"] for answer in answers]),
    }
    print_report(f"latency of {config.model.served_name}", report)
    return 0
