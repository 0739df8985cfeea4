"""`atom bench serve`: sends requests to a running server and measures what its clients feel.

Requests come all at once or at a rate, and no more than so many are in flight. Any server of
OpenAI's API will do; what only its tokenizer knows is asked of `/tokenize` and `/detokenize`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from atom.entrypoints.bench.acceptance_report import acceptance, read_draft_totals
from atom.entrypoints.bench.arrivals import arrival_seconds
from atom.entrypoints.bench.exchange import Exchange, Sender, exchange_once
from atom.entrypoints.bench.serve_args import CHAT, base_url_of, report_options
from atom.entrypoints.bench.serving_report import print_serving_report, serving_report
from atom.entrypoints.bench.workload import (
    DEFAULT_OUTPUT_TOKENS,
    Ask,
    RandomLengths,
    custom_asks,
    random_asks,
    sharegpt_asks,
)
from atom.entrypoints.http.api_key import read_api_key
from atom.entrypoints.process.logs import configure_logging
from atom.entrypoints.process.process_conduct import allow_many_open_files
from atom.errors import ConfigError

_FALLBACK_VOCAB_SIZE = 256  # for servers that do not tell theirs; every vocabulary has as many
_OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when any request failed."""
    configure_logging(args.log_level)
    allow_many_open_files()
    options = report_options(args)
    measured = asyncio.run(_measure(args))
    report = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "model_id": measured.model,
        "num_prompts": args.num_prompts,
        "request_rate": "inf" if args.request_rate == float("inf") else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **serving_report(measured.exchanges, measured.elapsed_seconds, options),
        **measured.acceptance,
    }
    print_serving_report(f"serving at {base_url_of(args)}", report, options)
    if args.save_result:
        _save(report, args)
    return 1 if report["failed"] else 0


@dataclass(frozen=True, slots=True)
class _Measured:
    """Exchanges of one benchmark run, with their time. acceptance: of drafts, where the server made
    any."""

    model: str
    exchanges: list[Exchange]
    elapsed_seconds: float
    acceptance: dict[str, Any]


async def _measure(args: argparse.Namespace) -> _Measured:
    async with aiohttp.ClientSession(
        base_url_of(args),
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=args.timeout_seconds),
        headers=_headers(args),
    ) as session:
        model, vocab_size = await _served_model(session, args)
        sender = Sender(
            session,
            model,
            endpoint=args.endpoint,
            ignore_eos=args.ignore_eos,
            extra=args.extra_body,
        )
        asks = await _asks(sender, args, vocab_size)
        for ask in asks[: args.num_warmups]:
            await exchange_once(sender, ask)
        before = await read_draft_totals(session)
        exchanges, elapsed_seconds = await _send_all(sender, asks, args)
        held = acceptance(before, await read_draft_totals(session))
        return _Measured(model, exchanges, elapsed_seconds, held)


async def _send_all(
    sender: Sender, asks: Sequence[Ask], args: argparse.Namespace
) -> tuple[list[Exchange], float]:
    """Send each request at its time, or when there is room for it."""
    at = arrival_seconds(len(asks), args.request_rate, args.burstiness, args.seed)
    room = asyncio.Semaphore(args.max_concurrency) if args.max_concurrency else nullcontext()
    started = time.perf_counter()
    with _progress_bar(enabled=not args.disable_tqdm) as progress:
        task = progress.add_task("serving", total=len(asks))

        async def one(ask: Ask, arrival: float) -> Exchange:
            await asyncio.sleep(max(0.0, started + arrival - time.perf_counter()))
            async with room:
                exchange = await exchange_once(sender, ask)
            progress.advance(task)
            return exchange

        exchanges = await asyncio.gather(*map(one, asks, at))
    return list(exchanges), time.perf_counter() - started


async def _asks(sender: Sender, args: argparse.Namespace, vocab_size: int) -> list[Ask]:
    count, output_tokens = args.num_prompts, args.output_len
    if args.dataset_name == "random":
        lengths = RandomLengths(
            args.input_len,
            output_tokens or DEFAULT_OUTPUT_TOKENS,
            args.random_range_ratio,
            args.random_prefix_len,
        )
        asks = random_asks(count, lengths, vocab_size, args.seed)
    elif args.dataset_path is None:
        raise ConfigError(f"--dataset-name {args.dataset_name} needs --dataset-path FILE")
    elif args.dataset_name == "custom":
        asks = custom_asks(args.dataset_path, count, output_tokens)
    else:

        async def count_tokens(text: str) -> int:
            answer = await _call(sender, "/tokenize", {"prompt": text})
            return int(answer["count"])

        asks = await sharegpt_asks(args.dataset_path, count, output_tokens, args.seed, count_tokens)
    return [await _as_text(sender, ask) for ask in asks] if sender.endpoint == CHAT else asks


async def _as_text(sender: Sender, ask: Ask) -> Ask:
    """Messages are texts: of token ids it is the server that knows theirs."""
    if isinstance(ask.prompt, str):
        return ask
    answer = await _call(sender, "/detokenize", {"tokens": ask.prompt})
    return replace(ask, prompt=str(answer["prompt"]))


async def _call(sender: Sender, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        async with sender.session.post(path, json={"model": sender.model, **fields}) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"this benchmark needs the server's {path}, which fails ({error}); use --dataset-name "
            f"random or custom with --endpoint /v1/completions"
        ) from error


async def _served_model(
    session: aiohttp.ClientSession, args: argparse.Namespace
) -> tuple[str, int]:
    try:
        async with session.get("/v1/models") as response:
            response.raise_for_status()
            (card, *_) = (await response.json())["data"]
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{base_url_of(args)} does not answer as a server that is ready ({error}); "
            f"check --base-url, its /health, and the key that it may want (--api-key-file)"
        ) from error
    vocab_size = args.vocab_size or card.get("vocab_size") or _FALLBACK_VOCAB_SIZE
    return args.model or card["id"], vocab_size


def _headers(args: argparse.Namespace) -> dict[str, str]:
    key = read_api_key(args.api_key_file, os.environ) or os.environ.get(_OPENAI_KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _save(report: dict[str, Any], args: argparse.Namespace) -> None:
    rate = "inf" if args.request_rate == float("inf") else f"{args.request_rate:g}"
    model = str(report["model_id"]).rsplit("/", 1)[-1]
    name = args.result_filename or f"atom-{rate}qps-{model}-{report['date']}.json"
    path = Path(args.result_dir) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error}); check --result-dir") from error


def _progress_bar(*, enabled: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not (enabled and console.is_terminal),
    )
