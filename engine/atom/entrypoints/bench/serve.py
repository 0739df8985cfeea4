"""`atom bench serve`: sends requests to a running server and measures its clients' latencies.

Requests are sent all at once, at a rate or at the times of a trace, with a bounded number in
flight. Several rates, or several such bounds, are a sweep. Any server of OpenAI's API will do; its
`/tokenize` and `/detokenize` answer the questions that need the tokenizer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
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
from atom.entrypoints.bench.saved_results import save_report, save_sweep
from atom.entrypoints.bench.serve_args import base_url_of, report_options
from atom.entrypoints.bench.serving_report import print_serving_report, serving_report
from atom.entrypoints.bench.sweep_report import Sweep, print_sweep
from atom.entrypoints.process.logs import configure_logging
from atom.entrypoints.process.process_conduct import allow_many_open_files


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; return exit code 1 if any request failed."""
    configure_logging(args.log_level)
    allow_many_open_files()
    options = report_options(args)
    loads = loads_of(args)
    date = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    reports = [{"date": date, **report} for report in asyncio.run(_measure(args, loads, options))]
    if len(loads) == 1:
        (report,) = reports
        print_serving_report(f"serving at {base_url_of(args)}", report, options)
        if args.save_result:
            save_report(report, args)
    else:
        variable = "request_rate" if len(args.request_rate or ()) > 1 else "max_concurrency"
        sweep = Sweep(variable, reports, options)
        print_sweep(f"serving at {base_url_of(args)}", sweep)
        if args.save_result:
            save_sweep(sweep, args)
    return 1 if any(report["failed"] for report in reports) else 0


async def _measure(
    args: argparse.Namespace, loads: Sequence[Load], options: ReportOptions
) -> list[dict[str, Any]]:
    async with measured_server(args) as server:
        sender = Sender(
            server.session,
            server.model,
            endpoint=args.endpoint,
            ignore_eos=args.ignore_eos,
            extra=args.extra_body,
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
) -> dict[str, Any]:
    wanted = await workload(server, args, load)
    if load.label and args.dataset_name in OF_TEXTS:
        await server.forget_prefixes()
    before = await read_draft_totals(server.session)
    exchanges, elapsed_seconds = await _send_all(sender, wanted, args, load)
    held = acceptance(before, await read_draft_totals(server.session))
    return {
        "model_id": server.model,
        "num_prompts": len(wanted.departures),
        "request_rate": load.told_rate,
        "burstiness": args.burstiness,
        "max_concurrency": load.max_concurrency,
        **serving_report(exchanges, elapsed_seconds, options),
        **held,
    }


async def _send_all(
    sender: Sender, wanted: Workload, args: argparse.Namespace, load: Load
) -> tuple[list[Exchange], float]:
    """Send each request when it is due and there is room for it."""
    progress = Progress(load.label or "serving", len(wanted.departures))

    async def send(place: int) -> Exchange:
        progress.sent()
        exchange = await exchange_once(sender, wanted.ask(place))
        progress.answered(exchange)
        return exchange

    started = time.perf_counter()
    async with shown(progress, sys.stderr, enabled=not args.disable_tqdm):
        exchanges = await replay(wanted.departures, send, load.max_concurrency)
        elapsed_seconds = time.perf_counter() - started
    return exchanges, elapsed_seconds
