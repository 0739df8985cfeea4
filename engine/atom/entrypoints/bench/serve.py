"""`atom bench serve`: sends requests to a running server and measures its clients' latencies.

Requests are sent all at once, at a rate or at the times of a trace, with a bounded number in
flight. Several rates, or several such bounds, are a sweep. Any server of OpenAI's API will do; its
`/tokenize` and `/detokenize` answer the questions that need the tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from atom.entrypoints.bench.acceptance_report import acceptance, read_draft_totals
from atom.entrypoints.bench.dataset import OF_TEXTS, Workload, workload
from atom.entrypoints.bench.exchange import Exchange, Sender, exchange_once
from atom.entrypoints.bench.load import Load, loads_of, warm_up_seed
from atom.entrypoints.bench.measured_server import MeasuredServer, measured_server
from atom.entrypoints.bench.progress import Progress, shown
from atom.entrypoints.bench.replay import replay
from atom.entrypoints.bench.report_options import ReportOptions
from atom.entrypoints.bench.request_flags import CHAT, endpoint_of, fields_of, names_of
from atom.entrypoints.bench.saved_results import save_report, save_sweep
from atom.entrypoints.bench.serve_args import base_url_of, report_options
from atom.entrypoints.bench.serving_report import (
    detailed,
    print_serving_report,
    serving_report,
)
from atom.entrypoints.bench.sweep_report import Sweep, print_sweep
from atom.entrypoints.process.logs import configure_logging
from atom.entrypoints.process.process_conduct import allow_many_open_files
from atom.errors import ConfigError

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; return exit code 1 if any request failed."""
    configure_logging(args.log_level)
    allow_many_open_files()
    for flag in args.unneeded_flags:
        logger.warning("the flag %s has no effect: %s", flag.flag, flag.note)
    args.endpoint = endpoint_of(args)
    options = report_options(args)
    loads = loads_of(args)
    _check_saving(args, loads)
    runs = asyncio.run(_measure(args, loads, options))
    reports = [run.report for run in runs]
    if len(loads) == 1:
        ((report, exchanges),) = ((run.report, run.exchanges) for run in runs)
        print_serving_report(f"serving at {base_url_of(args)}", report, options)
        if args.save_result or args.append_result:
            more = detailed(exchanges) if args.save_detailed else {}
            save_report(report | more, args)
    else:
        variable = "request_rate" if len(args.request_rate or ()) > 1 else "max_concurrency"
        sweep = Sweep(variable, reports, options)
        print_sweep(f"serving at {base_url_of(args)}", sweep)
        if args.save_result:
            save_sweep(sweep, args)
    return 1 if any(report["failed"] for report in reports) else 0


@dataclass(frozen=True, slots=True)
class _Run:
    """Hold one run of the benchmark: its report, and every exchange."""

    report: dict[str, Any]
    exchanges: list[Exchange]


def _check_saving(args: argparse.Namespace, loads: Sequence[Load]) -> None:
    """Raises `ConfigError` on flags of a file that is not written."""
    if args.save_detailed and not (args.save_result or args.append_result):
        raise ConfigError("--save-detailed is about the file of --save-result; add that flag")
    if len(loads) > 1 and (args.save_detailed or args.append_result):
        raise ConfigError(
            "--save-detailed and --append-result are for one run; a sweep has a file of its own"
        )


async def _measure(
    args: argparse.Namespace, loads: Sequence[Load], options: ReportOptions
) -> list[_Run]:
    async with measured_server(args) as server:
        sender = Sender(
            server.session,
            server.model,
            endpoint=args.endpoint,
            ignore_eos=args.ignore_eos,
            extra=fields_of(args, args.endpoint),
            name_of=names_of(args, server.model),
            id_prefix=args.request_id_prefix,
            keeps_texts=args.save_detailed,
        )
        await _warm_up(server, sender, args)
        if len(loads) > 1 and args.dataset_name in OF_TEXTS:
            await _say_what_is_remembered(server)
        return [await _run_one(server, sender, args, load, options) for load in loads]


async def _warm_up(server: MeasuredServer, sender: Sender, args: argparse.Namespace) -> None:
    """Send the first prompts of another seed, so that no measured prompt is cached."""
    if args.num_warmups:
        another = argparse.Namespace(**vars(args) | {"seed": warm_up_seed(args.seed)})
        before = await workload(server, another, Load())
        for place in range(min(args.num_warmups, len(before.departures))):
            await exchange_once(sender, before.ask(place))


async def _say_what_is_remembered(server: MeasuredServer) -> None:
    if not await server.forget_prefixes():
        print(
            "the prompts of a file come again at every point, and this server keeps their prefixes "
            "from one to the next: start it with an API key, with which POST /reset_prefix_cache "
            "works, or without its prefix cache",
            file=sys.stderr,
        )


async def _run_one(
    server: MeasuredServer,
    sender: Sender,
    args: argparse.Namespace,
    load: Load,
    options: ReportOptions,
) -> _Run:
    wanted = await workload(server, args, load)
    if load.label and args.dataset_name in OF_TEXTS:
        await server.forget_prefixes()
    before = await read_draft_totals(server.session)
    if args.profile:
        await server.profile("start")
    exchanges, elapsed_seconds = await _send_all(sender, wanted, args, load)
    if args.profile:
        await server.profile("stop")
    held = acceptance(before, await read_draft_totals(server.session))
    report = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend or ("openai-chat" if args.endpoint == CHAT else "openai"),
        **({"label": args.label} if args.label else {}),
        "model_id": server.model,
        "num_prompts": len(wanted.departures),
        "request_rate": load.told_rate,
        "burstiness": args.burstiness,
        "max_concurrency": load.max_concurrency,
        **_ramp_keys(load),
        **dict(args.metadata),
        **serving_report(exchanges, elapsed_seconds, options),
        **held,
    }
    return _Run(report, exchanges)


def _ramp_keys(load: Load) -> dict[str, Any]:
    if load.ramp is None:
        return {}
    return {
        "ramp_up_strategy": load.ramp.strategy,
        "ramp_up_start_rps": load.ramp.start,
        "ramp_up_end_rps": load.ramp.end,
    }


async def _send_all(
    sender: Sender, wanted: Workload, args: argparse.Namespace, load: Load
) -> tuple[list[Exchange], float]:
    """Send each request when it is due and there is room for it."""
    progress = Progress(load.label or "serving", len(wanted.departures))

    async def send(place: int) -> Exchange:
        progress.sent()
        exchange = await exchange_once(sender, wanted.ask(place), place)
        progress.answered(exchange)
        return exchange

    started = time.perf_counter()
    async with shown(progress, sys.stderr, enabled=not args.disable_tqdm):
        exchanges = await replay(wanted.departures, send, load.max_concurrency)
        elapsed_seconds = time.perf_counter() - started
    return exchanges, elapsed_seconds
