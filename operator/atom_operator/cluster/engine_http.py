"""EnginePort over HTTP: /health, /server_info and /metrics of a pod, with bounds on time and size.

A pod's answer is not trusted: an answer of another form counts as none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import aiohttp

from atom.bounded_input.bounded_json import JsonBounds, parse_json
from atom.sizing import Concurrency
from atom_operator import constants
from atom_operator.domain import (
    AdapterState,
    Capacity,
    EngineHealth,
    EngineMetrics,
    LoadProgress,
    StartupTimes,
)
from atom_operator.domain.replica_capacity import MemoryOfDevice
from atom_operator.pods.engine_metrics import UnreadableError, parse_metrics

_logger = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 3.0  # of a whole request
_MOST_BYTES = 256 * 1024
_MOST_CONNECTIONS = 32
_REASON_LIMIT = 300
_MOST_COUNTED = 2**63 - 1
_MOST_SECONDS = 7 * 24 * 3600.0
# Adapters are the longest list: ten values each.
_BOUNDS = JsonBounds(most_bytes=_MOST_BYTES, most_values=1 << 15, most_depth=32)
_MOST_ROWS = 64
_MOST_ADAPTERS = 2048
_MOST_NAME, _MOST_PATH = 256, 4096  # characters, as the CRD has them


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
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            # A refusal during start-up has none of the fields; a newer engine may lack one.
            _logger.debug("%s/server_info has no capacity: %r", address, error)
            return None

    async def metrics(self, address: str) -> EngineMetrics | None:
        body = await self._read(address, "/metrics")
        return None if body is None else parse_metrics(body)

    async def adapters(self, address: str) -> tuple[AdapterState, ...] | None:
        answer = await self._get(address, "/server_info")
        return None if answer is None else _adapters(answer.get("adapters"))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Open the session at the first question, because it belongs to an event loop. The
        environment's proxy does not know pod addresses, and is not used."""
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
            answer = None if body is None else parse_json(body, _BOUNDS, finite=True)
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
                str(item["name"])[:_MOST_NAME],
                str(item["path"])[:_MOST_PATH],
                str(item["state"])[:_MOST_NAME],
                str(item.get("message") or "")[:_REASON_LIMIT],
            )
            for item in answer[:_MOST_ADAPTERS]
        )
    except (KeyError, TypeError, AttributeError) as error:
        _logger.debug("unreadable adapters: %r", error)
        return None


def _progress(answer: Any) -> LoadProgress | None:
    """Read the load progress; None from an engine that is older than this report."""
    if not isinstance(answer, Mapping):
        return None
    try:
        return LoadProgress(
            phase=str(answer["phase"])[:_REASON_LIMIT],
            fraction=min(max(_finite(answer["fraction"]), 0.0), 1.0),
            bytes_total=_whole(answer.get("bytes_total")),
            bytes_per_second=_whole(answer.get("bytes_per_second")),
            seconds_without_progress=_seconds(answer["seconds_without_progress"]),
            stalled=answer["stalled"] is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        _logger.debug("unreadable progress: %r", error)
        return None


def _whole(value: Any) -> int | None:
    return None if value is None else min(max(int(value), 0), _MOST_COUNTED)


def _capacity(answer: Mapping[str, Any]) -> Capacity:
    """Read the capacity of the whole pod: an engine reports the numbers of one copy of the model,
    and the totals. Raises ValueError, TypeError and LookupError for an invalid answer."""
    copies = len(answer.get("ranks") or ())
    copies, total = (copies, answer["total"]) if copies else (1, answer)
    rows = tuple(
        Concurrency(_size(row["context_tokens"]), _size(row["sequences"]) * copies)
        for row in answer["concurrency"][:_MOST_ROWS]
    )
    return Capacity(
        weights_bytes=_size(answer["weights_bytes"]),
        kv_bytes_per_token=_size(answer["kv_bytes_per_token"]),
        num_blocks=_size(total["num_blocks"]),
        kv_tokens=_size(total["kv_tokens"]),
        max_sequences=rows[-1].sequences if rows else 0,
        max_model_len=_size(answer["max_model_len"]),
        limited_by=str(answer["limited_by"])[:_REASON_LIMIT],
        concurrency=rows,
        device=MemoryOfDevice(
            _whole(answer.get("total_memory_bytes")) or 0, reserve_bytes=_reserve(answer)
        ),
        startup=_startup(answer),
    )


def _size(value: Any) -> int:
    """Return a number of bytes, tokens or blocks; raises UnreadableError for an invalid one."""
    number = int(value)
    if not 0 <= number <= _MOST_COUNTED:
        raise UnreadableError(f"{number} is no size")
    return number


def _reserve(answer: Mapping[str, Any]) -> int:
    """Return the bytes that the engine occupies beside weights and KV cache; 0 if it does not
    report them."""
    peak = _whole(answer.get("peak_bytes"))
    return max(0, peak - int(answer["weights_bytes"])) if peak else 0


def _startup(answer: Mapping[str, Any]) -> StartupTimes | None:
    seconds, loading = answer.get("startup_seconds"), answer.get("weights_loading_seconds")
    size = _whole(answer.get("checkpoint_bytes"))
    if seconds is None or loading is None or not size:
        return None
    return StartupTimes(_seconds(seconds), _seconds(loading), size)


def _seconds(value: Any) -> float:
    return min(max(_finite(value), 0.0), _MOST_SECONDS)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise UnreadableError(f"{number} is no time or share")
    return number
