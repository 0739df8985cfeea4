"""Choice of the requests that the flags ask for: their prompts, and which requests wait for others.

Chooses among the datasets; each dataset has its own module.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

from atom.entrypoints.bench.load import Load
from atom.entrypoints.bench.measured_server import MeasuredServer
from atom.entrypoints.bench.prefix_repetition import PrefixRepetition, prefix_repetition_asks
from atom.entrypoints.bench.replay import Departure
from atom.entrypoints.bench.request_flags import CHAT
from atom.entrypoints.bench.serve_args import TIMED_TRACE, TRACES
from atom.entrypoints.bench.traces.block_prompts import BlockPrompts
from atom.entrypoints.bench.traces.timed_trace import TraceUnits, read_timed_trace
from atom.entrypoints.bench.traces.traced_request import TracedRequest
from atom.entrypoints.bench.traces.weka_trace import read_weka_trace
from atom.entrypoints.bench.workload import (
    DEFAULT_OUTPUT_TOKENS,
    Ask,
    RandomLengths,
    custom_asks,
    random_asks,
    sharegpt_asks,
)
from atom.errors import ConfigError

DEFAULT_PROMPTS = 64
# Their prompts come again at each point of a sweep, whatever the seed.
OF_TEXTS = ("sharegpt", "custom")


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one run. ask: builds the prompt of a place, when it is sent; departures: by
    place."""

    ask: Callable[[int], Ask]
    departures: list[Departure]


async def workload(server: MeasuredServer, args: argparse.Namespace, load: Load) -> Workload:
    """Raises `ConfigError` on a dataset that cannot be read or does not suit the endpoint."""
    if args.dataset_name in TRACES:
        requests = traced_requests(args)
        prompts = BlockPrompts(requests, server.vocab_size, load.seed(args.seed))
        return Workload(prompts.ask, timed(requests, args, load))
    asks = await _asks(server, args, load.seed(args.seed))
    if args.endpoint == CHAT:
        asks = [await server.as_text(ask) for ask in asks]
    at = load.arrivals(len(asks), args.burstiness, args.seed)
    return Workload(asks.__getitem__, [Departure(seconds) for seconds in at])


def traced_requests(args: argparse.Namespace) -> list[TracedRequest]:
    if args.endpoint == CHAT:
        raise ConfigError(
            f"--dataset-name {args.dataset_name} sends exact counts of tokens, which a chat's "
            f"template would change; use --endpoint /v1/completions"
        )
    path = args.dataset_path
    if path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs --dataset-path FILE")
    second = args.timed_trace_sec_multiplier
    if args.dataset_name == TIMED_TRACE:
        units = TraceUnits(args.timed_trace_chunk_hash_size, second)
        requests = read_timed_trace(path, units, args.num_prompts)
    else:
        requests = read_weka_trace(path, second, args.num_prompts)
    if args.output_len is None:
        return requests
    return [replace(request, output_tokens=args.output_len) for request in requests]


def timed(requests: list[TracedRequest], args: argparse.Namespace, load: Load) -> list[Departure]:
    """Return the trace's own times; or start its conversations at the rate, keeping the waits and
    think times within each."""
    departures = [request.departure for request in requests]
    if load.is_self_timed:
        return departures
    firsts = [place for place, departure in enumerate(departures) if not departure.after]
    at = load.arrivals(len(firsts), args.burstiness, args.seed)
    for place, seconds in zip(firsts, at, strict=True):
        departures[place] = Departure(seconds)
    return [replace(each, at_seconds=0.0) if each.after else each for each in departures]


async def _asks(server: MeasuredServer, args: argparse.Namespace, seed: int) -> list[Ask]:
    count, output_tokens = args.num_prompts or DEFAULT_PROMPTS, args.output_len
    if args.dataset_name == "random":
        lengths = RandomLengths(
            args.input_len,
            output_tokens or DEFAULT_OUTPUT_TOKENS,
            args.random_range_ratio,
            args.random_prefix_len,
        )
        return random_asks(count, lengths, server.vocab_size, seed)
    if args.dataset_name == "prefix_repetition":
        repetition = PrefixRepetition(
            args.prefix_repetition_prefix_len,
            args.prefix_repetition_suffix_len,
            output_tokens or DEFAULT_OUTPUT_TOKENS,
            args.prefix_repetition_num_prefixes,
        )
        return prefix_repetition_asks(count, repetition, server.vocab_size, seed)
    if args.dataset_path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs --dataset-path FILE")
    repeats = not args.no_oversample
    if args.dataset_name == "custom":
        return custom_asks(args.dataset_path, count, output_tokens, repeats=repeats)
    shuffled = None if args.disable_shuffle else args.seed
    return await sharegpt_asks(
        args.dataset_path, count, output_tokens, shuffled, server.count_tokens, repeats=repeats
    )
