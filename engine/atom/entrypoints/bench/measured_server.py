"""MeasuredServer: a benchmark's questions to a server besides its load: model, vocabulary, tokens
of a text, and a reset of the prefix cache.

Every server must list its models; the other endpoints are called only if a dataset needs them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from atom.entrypoints.bench.serve_args import base_url_of
from atom.entrypoints.bench.workload import Ask
from atom.entrypoints.http.api_key import read_api_key
from atom.errors import ConfigError

_FALLBACK_VOCAB_SIZE = 256  # for servers that do not report theirs; every vocabulary has as many
_ASK_AGAIN_SECONDS = 1.0
_OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A server that is ready. vocab_size: token ids below it are valid in prompts."""

    session: aiohttp.ClientSession
    model: str
    vocab_size: int

    async def count_tokens(self, text: str) -> int:
        answer = await self._call("/tokenize", {"prompt": text})
        return int(answer["count"])

    async def as_text(self, ask: Ask) -> Ask:
        """Decode a prompt of token ids by the server, since messages are texts."""
        if isinstance(ask.prompt, str):
            return ask
        answer = await self._call("/detokenize", {"tokens": ask.prompt})
        return replace(ask, prompt=str(answer["prompt"]))

    async def profile(self, verb: str) -> None:
        """Start or stop the server's profiler. Raises `ConfigError` if it has none."""
        try:
            async with self.session.post(f"{verb}_profile") as response:
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConfigError(
                f"--profile needs the server's /{verb}_profile, which fails ({error}); start it "
                "with --torch-profiler-dir DIR, and give the key of an administrator"
            ) from error

    async def forget_prefixes(self) -> bool:
        """Reset the server's prefix cache, and return whether it succeeded."""
        try:
            async with self.session.post("reset_prefix_cache") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _call(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self.session.post(
                path.lstrip("/"), json={"model": self.model, **fields}
            ) as response:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ConfigError(
                f"this benchmark needs the server's {path}, which fails ({error}); use "
                f"--dataset-name random or custom with --endpoint /v1/completions"
            ) from error


@asynccontextmanager
async def measured_server(args: argparse.Namespace) -> AsyncIterator[MeasuredServer]:
    """Open connections to the server that the flags name. Raises `ConfigError` if it is not
    ready."""
    certificates = not args.insecure
    async with aiohttp.ClientSession(
        f"{base_url_of(args)}/",  # a path of it is kept: requests have none that begins with /
        connector=aiohttp.TCPConnector(limit=0, ssl=certificates),
        timeout=aiohttp.ClientTimeout(total=args.timeout_seconds),
        headers=_headers(args),
    ) as session:
        try:
            card = await _first_model(session, args.ready_check_timeout_sec)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{base_url_of(args)} does not answer as a server that is ready ({error}); "
                f"check --base-url, its /health, and the key that it may want (--api-key-file)"
            ) from error
        vocab_size = args.vocab_size or card.get("vocab_size") or _FALLBACK_VOCAB_SIZE
        model = args.served_model_name or args.model or card["id"]
        yield MeasuredServer(session, model, vocab_size)


async def _first_model(session: aiohttp.ClientSession, seconds: int) -> dict[str, Any]:
    """Return the card of the server's first model. seconds: for the server to become ready, asked
    again each second. Raises what the last try raised."""
    ends = time.monotonic() + seconds
    while True:
        try:
            async with session.get("v1/models") as response:
                response.raise_for_status()
                (card, *_) = (await response.json())["data"]
                return dict(card)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            if time.monotonic() >= ends:
                raise
            await asyncio.sleep(_ASK_AGAIN_SECONDS)


def _headers(args: argparse.Namespace) -> dict[str, str]:
    key = read_api_key(args.api_key_file, os.environ) or os.environ.get(_OPENAI_KEY_VARIABLE)
    return {**({"Authorization": f"Bearer {key}"} if key else {}), **dict(args.header)}
