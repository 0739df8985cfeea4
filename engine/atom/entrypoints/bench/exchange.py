"""Sends one streamed request of a benchmark and records its tokens' arrival times and its fault.

Speaks OpenAI's completions and chat, so any server of that API can be measured. Times by the
caller's monotonic clock; faults are reported in the result, never raised. Used by `atom bench
serve` and benchmarks/served.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from atom.entrypoints.bench.serve_args import CHAT, COMPLETIONS
from atom.entrypoints.bench.workload import Ask


@dataclass(frozen=True, slots=True)
class Sender:
    """Describe how requests are sent. extra: further fields of the body, which win over ours."""

    session: aiohttp.ClientSession
    model: str
    endpoint: str = COMPLETIONS
    ignore_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, ask: Ask) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": ask.prompt}
        if self.endpoint == CHAT:
            asked = {"messages": [{"role": "user", "content": ask.prompt}]}
        return {
            "model": self.model,
            **asked,
            "max_tokens": ask.output_tokens,
            "ignore_eos": self.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }


@dataclass(slots=True)
class Exchange:
    """Hold one exchange's measurements. Times in seconds. ttft: to the first piece of the answer;
    gaps: between pieces (a server may put several tokens into one); e2e: to the last. error: None
    if the answer was complete. cached_tokens: of the prompt, from the server's prefix cache; None
    if it does not report them."""

    ttft_seconds: float = 0.0
    e2e_seconds: float = 0.0
    gaps_seconds: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    cached_tokens: int | None = None

    @property
    def tpot_seconds(self) -> float | None:
        """Compute the seconds per token after the first; None if there is none."""
        if self.output_tokens < 2:
            return None
        return (self.e2e_seconds - self.ttft_seconds) / (self.output_tokens - 1)


async def exchange_once(sender: Sender, ask: Ask) -> Exchange:
    """Send one request and read its answer to the end."""
    exchange = Exchange()
    started = last = time.perf_counter()
    done = False
    try:
        async with sender.session.post(
            sender.endpoint.lstrip("/"), json=sender.body(ask)
        ) as response:
            if response.status != 200:
                exchange.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return exchange
            async for line in response.content:
                data = line.strip().removeprefix(b"data: ")
                if data == b"[DONE]":
                    done = True
                elif data.startswith(b"{"):
                    now = time.perf_counter()
                    if _note(exchange, json.loads(data), now - started, now - last):
                        last = now
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        exchange.error = f"{type(error).__name__}: {error}"
    exchange.e2e_seconds = last - started
    if not done and exchange.error is None:
        exchange.error = "the stream ended without [DONE]"
    return exchange


def _note(exchange: Exchange, event: dict[str, Any], since_start: float, since_last: float) -> bool:
    """Take in one event; whether it was a piece of the answer."""
    usage = event.get("usage")
    if isinstance(usage, dict):
        exchange.input_tokens = int(usage["prompt_tokens"])
        exchange.output_tokens = int(usage["completion_tokens"])
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            exchange.cached_tokens = int(details["cached_tokens"])
    if "error" in event:
        exchange.error = str(event["error"])
        return False
    choices = event.get("choices")
    if not choices or _only_names_the_role(choices[0]):
        return False
    if exchange.ttft_seconds == 0.0:
        exchange.ttft_seconds = since_start
    else:
        exchange.gaps_seconds.append(since_last)
    return True


def _only_names_the_role(choice: dict[str, Any]) -> bool:
    """Return whether a chat event only names the role, which may precede the first token."""
    delta = choice.get("delta")
    return (
        isinstance(delta, dict)
        and "role" in delta
        and not delta.get("content")
        and choice.get("finish_reason") is None
    )
