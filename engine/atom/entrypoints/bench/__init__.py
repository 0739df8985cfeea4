"""`atom bench`: throughput and latency of the engine offline, and of a server over HTTP.

Prompts are random token ids unless a server is asked what a dataset holds, so that no answer comes
from a cache. Each prints a table, and one JSON object as the last line of stdout. This module only
declares the flags; torch-free.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from atom.entrypoints.bench.flags_of_vllm import VLLM_BENCH_ROW_OF
from atom.entrypoints.bench.serve_args import add_serve_flags, whole
from atom.entrypoints.flags.engine_args import add_engine_arguments
from atom.entrypoints.flags.flag_parser import FlagParser


def add_bench_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Add the three commands; returns their parsers."""
    commands = parser.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    throughput = commands.add_parser("throughput", help="many requests at once, offline")
    add_engine_arguments(throughput)
    _add_number(throughput, "--num-prompts", 64, "requests")
    _add_lengths(throughput, input_len=128, output_len=64)
    _set_run(throughput, "throughput")

    latency = commands.add_parser("latency", help="one batch after another, offline")
    add_engine_arguments(latency)
    _add_number(latency, "--batch-size", 1, "requests at once")
    _add_lengths(latency, input_len=32, output_len=64)
    _add_number(latency, "--num-iters", 5, "measured batches")
    _add_number(latency, "--num-warmup-iters", 1, "batches before, not measured")
    _set_run(latency, "latency")

    serve = commands.add_parser("serve", help="a running server over HTTP")
    add_serve_flags(serve)
    if isinstance(serve, FlagParser):
        serve.other_flags = VLLM_BENCH_ROW_OF
    _set_run(serve, "serve")
    return [throughput, latency, serve]


def _add_lengths(parser: argparse.ArgumentParser, *, input_len: int, output_len: int) -> None:
    _add_number(parser, "--input-len", input_len, "tokens per prompt")
    _add_number(parser, "--output-len", output_len, "tokens per answer")


def _add_number(parser: argparse.ArgumentParser, flag: str, default: int, help_text: str) -> None:
    parser.add_argument(flag, type=whole, default=default, help=help_text)


def _set_run(parser: argparse.ArgumentParser, name: str) -> None:
    def run(args: argparse.Namespace) -> Any:
        return import_module(f"atom.entrypoints.bench.{name}").run(args)

    parser.set_defaults(run=run)
