"""Sends one streamed request of a benchmark and records its tokens' arrival times and its fault.

Speaks OpenAI's completions and chat, so any server of that API can be measured. Times by the
caller's monotonic clock; faults are reported in the result, never raised. Used by `atom bench
serve` and benchmarks/served.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from atom.entrypoints.bench.request_flags import CHAT, COMPLETIONS
from atom.entrypoints.bench.workload import Ask


@dataclass(frozen=True, slots=True)
class Sender:
    """Describe how requests are sent. extra: further fields of the body, which win over ours.
    name_of: the model that the request of a place names, if it is not `model`; id_prefix: of their
    ids, empty for the server's own; keeps_texts: whether answers are kept."""

    session: aiohttp.ClientSession
    model: str
    endpoint: str = COMPLETIONS
    ignore_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    name_of: Callable[[int], str] | None = None
    id_prefix: str = ""
    keeps_texts: bool = False

    def headers(self, place: int) -> dict[str, str]:
        """Build the headers of one request."""
        return {"X-Request-Id": f"{self.id_prefix}{place}"} if self.id_prefix else {}

    def body(self, ask: Ask, place: int = 0) -> dict[str, Any]:
        """Build the body of one request. place: its number in the workload."""
        asked: dict[str, Any] = {"prompt": ask.prompt}
        if self.endpoint == CHAT:
            asked = {"messages": [{"role": "user", "content": ask.prompt}]}
        return {
            "model": self.model if self.name_of is None else self.name_of(place),
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
    if it does not report them. start_seconds: on the monotonic clock; text: of the answer, if it
    is kept."""

    ttft_seconds: float = 0.0
    e2e_seconds: float = 0.0
    gaps_seconds: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    cached_tokens: int | None = None
    start_seconds: float = 0.0
    text: str = ""

    @property
    def tpot_seconds(self) -> float | None:
        """Compute the seconds per token after the first; None if there is none."""
        if self.output_tokens < 2:
            return None
        return (self.e2e_seconds - self.ttft_seconds) / (self.output_tokens - 1)


async def exchange_once(sender: Sender, ask: Ask, place: int = 0) -> Exchange:
    """Send one request and read its answer to the end. place: its number in the workload."""
    started = last = time.perf_counter()
    exchange = Exchange(start_seconds=started)
    done = False
    try:
        async with sender.session.post(
            sender.endpoint.lstrip("/"),
            json=sender.body(ask, place),
            headers=sender.headers(place),
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
                    event = json.loads(data)
                    if _note(exchange, event, now - started, now - last):
                        last = now
                        if sender.keeps_texts:
                            exchange.text += _text_of(event)
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


def _text_of(event: dict[str, Any]) -> str:
    """Return the piece of the answer in an event."""
    choice = event["choices"][0]
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")


def _only_names_the_role(choice: dict[str, Any]) -> bool:
    """Return whether a chat event only names the role, which may precede the first token."""
    delta = choice.get("delta")
    return (
        isinstance(delta, dict)
        and "role" in delta
        and not delta.get("content")
        and choice.get("finish_reason") is None
    )
