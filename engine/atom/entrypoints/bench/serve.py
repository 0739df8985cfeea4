"""`atom bench serve`: streams requests from a running server and measures what a client feels."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp

from atom.entrypoints.bench.report import Value, latency_summary, print_report, random_prompts
from atom.entrypoints.logs import configure_logging
from atom.errors import ConfigError

_FALLBACK_VOCAB_SIZE = 256  # for servers that do not tell theirs; every vocabulary has as many


@dataclass(slots=True)
class Exchange:
    """One request as its client saw it. error: None when the answer was complete."""

    ttft_seconds: float = 0.0
    e2e_seconds: float = 0.0
    gaps_seconds: list[float] = field(default_factory=list)
    output_tokens: int = 0
    error: str | None = None


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when any request failed."""
    configure_logging(args.log_level)
    if args.max_concurrency < 1:
        raise ConfigError("--max-concurrency must be at least 1")
    exchanges, elapsed_seconds = asyncio.run(_measure(args))
    failures = [exchange.error for exchange in exchanges if exchange.error is not None]
    print_report(f"serving at {args.base_url}", summary(exchanges, elapsed_seconds))
    return 1 if failures else 0


async def _measure(args: argparse.Namespace) -> tuple[list[Exchange], float]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=args.timeout_seconds)
    async with aiohttp.ClientSession(
        args.base_url, connector=connector, timeout=timeout
    ) as session:
        model, vocab_size = await _served_model(session, args)
        prompts = random_prompts(args.num_prompts, args.input_len, vocab_size, args.seed)
        slots = asyncio.Semaphore(args.max_concurrency)

        async def one(prompt: list[int]) -> Exchange:
            async with slots:
                return await exchange_once(session, model, prompt, args.output_len)

        started = time.perf_counter()
        exchanges = await asyncio.gather(*map(one, prompts))
        return list(exchanges), time.perf_counter() - started


async def _served_model(
    session: aiohttp.ClientSession, args: argparse.Namespace
) -> tuple[str, int]:
    try:
        async with session.get("/v1/models") as response:
            response.raise_for_status()
            (card, *_) = (await response.json())["data"]
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{args.base_url} does not answer as a server that is ready ({error}); "
            f"check --base-url and its /health"
        ) from error
    vocab_size = args.vocab_size or card.get("vocab_size") or _FALLBACK_VOCAB_SIZE
    return args.model or card["id"], vocab_size


async def exchange_once(
    session: aiohttp.ClientSession, model: str, prompt: list[int], output_len: int
) -> Exchange:
    """One streamed completion; faults are told in the result, never raised."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_len,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    exchange = Exchange()
    started = last = time.perf_counter()
    done = False
    try:
        async with session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                exchange.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return exchange
            async for line in response.content:
                data = line.strip().removeprefix(b"data: ")
                if data == b"[DONE]":
                    done = True
                elif data:
                    now = time.perf_counter()
                    _note(exchange, json.loads(data), now - started, now - last)
                    last = now
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        exchange.error = f"{type(error).__name__}: {error}"
    exchange.e2e_seconds = time.perf_counter() - started
    if not done and exchange.error is None:
        exchange.error = "the stream ended without [DONE]"
    return exchange


def _note(
    exchange: Exchange, event: dict[str, object], since_start: float, since_last: float
) -> None:
    if "error" in event:
        exchange.error = str(event["error"])
    elif event.get("choices"):
        if exchange.ttft_seconds == 0.0:
            exchange.ttft_seconds = since_start
        else:
            exchange.gaps_seconds.append(since_last)
    usage = event.get("usage")
    if isinstance(usage, dict):
        exchange.output_tokens = int(usage["completion_tokens"])


def summary(exchanges: list[Exchange], elapsed_seconds: float) -> dict[str, Value]:
    good = [exchange for exchange in exchanges if exchange.error is None]
    errors = [exchange.error for exchange in exchanges if exchange.error is not None]
    output_tokens = sum(exchange.output_tokens for exchange in good)
    report: dict[str, Value] = {
        "requests": len(exchanges),
        "failures": len(errors),
        "output_tokens": output_tokens,
        "elapsed_s": round(elapsed_seconds, 4),
        "requests_per_s": round(len(good) / elapsed_seconds, 3),
        "output_tokens_per_s": round(output_tokens / elapsed_seconds, 3),
        **latency_summary("ttft", [exchange.ttft_seconds for exchange in good]),
        **latency_summary("itl", [gap for exchange in good for gap in exchange.gaps_seconds]),
        **latency_summary("e2e", [exchange.e2e_seconds for exchange in good]),
    }
    if errors:
        report["first_error"] = str(errors[0])
    return report
