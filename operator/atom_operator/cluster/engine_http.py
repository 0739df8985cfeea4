"""EnginePort over HTTP: /health, /server_info and /metrics of a pod, with bounds on time and size.

What a pod answers is not trusted to be what we expect: anything else is no answer.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import aiohttp

from atom.sizing import Concurrency
from atom_operator import constants
from atom_operator.domain import (
    AdapterState,
    Capacity,
    DraftCounts,
    EngineHealth,
    EngineLoad,
    EngineMetrics,
    LoadProgress,
    RequestCounts,
    SleepCounts,
    StartupTimes,
)

_logger = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 3.0  # of a whole request
_MOST_BYTES = 256 * 1024
_MOST_CONNECTIONS = 32
_REASON_LIMIT = 300
_MOST_COUNTED = 2**63 - 1
_MOST_SECONDS = 7 * 24 * 3600.0
_DRAFTS = re.compile(
    r"^atom:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total(?:\{.*\})? ([0-9.e+]+)$",
    re.MULTILINE,
)

_LOAD = re.compile(
    r"^atom:(requests_running|requests_waiting|kv_cache_blocks_indexed)(?:\{.*\})? ([0-9.e+]+)$",
    re.MULTILINE,
)
_FINISHED = re.compile(
    r'^atom:requests_finished_total\{.*finished_reason="([a-z_]+)".*\} ([0-9.e+]+)$', re.MULTILINE
)
_FIRST_TOKENS = re.compile(
    r"^atom:time_to_first_token_seconds_(count|sum)(?:\{.*\})? ([0-9.e+-]+)$", re.MULTILINE
)
_SLEEP = re.compile(r"^atom:(sleeping|model_wakes_total)(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)
_CLIENT_LEFT, _FAILED = "abort", "error"  # of finish reasons
_BLOCK_SIZE = re.compile(r'^atom:cache_config_info\{.*block_size="([0-9]{1,6})"', re.MULTILINE)


class HttpEngines:
    """Asks engines at `address:port`; close it at the end."""

    def __init__(self, port: int = constants.ENGINE_PORT) -> None:
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def health(self, address: str) -> EngineHealth | None:
        answer = await self._get(address, "/health")
        if answer is None or not isinstance(answer.get("status"), str):
            return None
        reason = str(answer.get("reason") or "")[:_REASON_LIMIT]
        return EngineHealth(answer["status"], reason, _progress(answer.get("progress")))

    async def capacity(self, address: str) -> Capacity | None:
        answer = await self._get(address, "/server_info")
        if answer is None:
            return None
        try:
            return _capacity(answer)
        except (KeyError, TypeError, ValueError) as error:
            # A refusal while it starts has none of the fields; a newer engine may lack one.
            _logger.debug("%s/server_info has no capacity: %r", address, error)
            return None

    async def metrics(self, address: str) -> EngineMetrics | None:
        body = await self._read(address, "/metrics")
        return None if body is None else _metrics(body)

    async def adapters(self, address: str) -> tuple[AdapterState, ...] | None:
        answer = await self._get(address, "/server_info")
        return None if answer is None else _adapters(answer.get("adapters"))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Opened at the first question, because a session belongs to an event loop. A proxy of the
        environment does not know pod addresses, and is not asked."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS),
                connector=aiohttp.TCPConnector(limit=_MOST_CONNECTIONS, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _get(self, address: str, path: str) -> dict[str, Any] | None:
        body = await self._read(address, path)
        try:
            answer = None if body is None else json.loads(body)
        except ValueError as error:
            _logger.debug("%s%s: %r", address, path, error)
            return None
        return answer if isinstance(answer, dict) else None

    async def _read(self, address: str, path: str) -> bytes | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}{path}"
        body = bytearray()
        try:
            async with self._opened().get(url, allow_redirects=False) as response:
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MOST_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError) as error:
            _logger.debug("%s: %r", url, error)
            return None
        return bytes(body)


def _adapters(answer: Any) -> tuple[AdapterState, ...] | None:
    """Read the adapters that an engine follows; None from one that follows none, or is not
    started."""
    if not isinstance(answer, list):
        return None
    try:
        return tuple(
            AdapterState(
                str(item["name"]),
                str(item["path"]),
                str(item["state"]),
                str(item.get("message") or "")[:_REASON_LIMIT],
            )
            for item in answer
        )
    except (KeyError, TypeError, AttributeError) as error:
        _logger.debug("unreadable adapters: %r", error)
        return None


def _metrics(body: bytes) -> EngineMetrics:
    return EngineMetrics(_draft_counts(body), _load(body), _requests(body), _sleep(body))


def _requests(metrics: bytes) -> RequestCounts | None:
    """Read what became of requests, summed over label sets; None where it is not told."""
    try:
        text = metrics.decode()
        ended = _sums(_FINISHED, text)
        seconds = sum(float(v) for name, v in _FIRST_TOKENS.findall(text) if name == "sum")
        tokens = sum(int(float(v)) for name, v in _FIRST_TOKENS.findall(text) if name == "count")
    except (ValueError, OverflowError) as error:
        _logger.debug("/metrics does not count requests: %r", error)
        return None
    if not ended and not tokens:
        return None
    whole = sum(count for reason, count in ended.items() if reason != _CLIENT_LEFT)
    return RequestCounts(whole, ended.get(_FAILED, 0), tokens, seconds)


def _sleep(metrics: bytes) -> SleepCounts | None:
    """Read how the engine sleeps; None of one that does not when it is idle."""
    try:
        found = _sums(_SLEEP, metrics.decode())
        return SleepCounts(int(found["sleeping"] > 0), found["model_wakes_total"])
    except (KeyError, ValueError, OverflowError) as error:
        _logger.debug("/metrics does not tell of sleep: %r", error)
        return None


def _draft_counts(metrics: bytes) -> DraftCounts | None:
    """Read the draft counts of Prometheus' text format, summed over label sets; None where a count
    is missing."""
    try:
        found = _sums(_DRAFTS, metrics.decode())
        return DraftCounts(found["drafts"], found["draft_tokens"], found["accepted_tokens"])
    except (KeyError, ValueError, OverflowError) as error:
        _logger.debug("/metrics does not count drafts: %r", error)
        return None


def _load(metrics: bytes) -> EngineLoad | None:
    """Read the gauges of a load, summed over label sets; None where one is missing."""
    try:
        text = metrics.decode()
        found, sizes = _sums(_LOAD, text), _BLOCK_SIZE.findall(text)
        cached = found["kv_cache_blocks_indexed"] * int(sizes[0])
        return EngineLoad(found["requests_running"] + found["requests_waiting"], cached)
    except (KeyError, IndexError, ValueError, OverflowError) as error:
        _logger.debug("/metrics tells no load: %r", error)
        return None


def _sums(samples: re.Pattern[str], text: str) -> dict[str, int]:
    """Add up the samples of each name over label sets."""
    found: dict[str, int] = {}
    for name, value in samples.findall(text):
        found[name] = found.get(name, 0) + min(int(float(value)), _MOST_COUNTED)
    return found


def _progress(answer: Any) -> LoadProgress | None:
    """Read the load progress; None from an engine that is older than this report."""
    if not isinstance(answer, Mapping):
        return None
    try:
        return LoadProgress(
            phase=str(answer["phase"])[:_REASON_LIMIT],
            fraction=min(max(float(answer["fraction"]), 0.0), 1.0),
            bytes_total=_whole(answer.get("bytes_total")),
            bytes_per_second=_whole(answer.get("bytes_per_second")),
            seconds_without_progress=float(answer["seconds_without_progress"]),
            stalled=answer["stalled"] is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        _logger.debug("unreadable progress: %r", error)
        return None


def _whole(value: Any) -> int | None:
    return None if value is None else min(max(int(value), 0), _MOST_COUNTED)


def _capacity(answer: Mapping[str, Any]) -> Capacity:
    """Read the capacity of the whole pod: an engine tells the numbers of one copy of the model, and
    the totals."""
    copies = len(answer.get("ranks") or ())
    copies, total = (copies, answer["total"]) if copies else (1, answer)
    rows = tuple(
        Concurrency(int(row["context_tokens"]), int(row["sequences"]) * copies)
        for row in answer["concurrency"]
    )
    return Capacity(
        weights_bytes=int(answer["weights_bytes"]),
        kv_bytes_per_token=int(answer["kv_bytes_per_token"]),
        num_blocks=int(total["num_blocks"]),
        kv_tokens=int(total["kv_tokens"]),
        max_sequences=rows[-1].sequences if rows else 0,
        max_model_len=int(answer["max_model_len"]),
        limited_by=str(answer["limited_by"]),
        concurrency=rows,
        reserve_bytes=_reserve(answer),
        total_bytes=_whole(answer.get("total_memory_bytes")) or 0,
        startup=_startup(answer),
    )


def _reserve(answer: Mapping[str, Any]) -> int:
    """Return what the engine occupies beside weights and KV cache; 0 when it does not say."""
    peak = _whole(answer.get("peak_bytes"))
    return max(0, peak - int(answer["weights_bytes"])) if peak else 0


def _startup(answer: Mapping[str, Any]) -> StartupTimes | None:
    seconds, loading = answer.get("startup_seconds"), answer.get("weights_loading_seconds")
    size = _whole(answer.get("checkpoint_bytes"))
    if seconds is None or loading is None or not size:
        return None
    return StartupTimes(_seconds(seconds), _seconds(loading), size)


def _seconds(value: Any) -> float:
    return min(max(float(value), 0.0), _MOST_SECONDS)
