"""Prometheus: one value of a query, of the server that the operator's chart names.

Its answer is not trusted: an answer of another form is reported in words.
"""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

import aiohttp

_TIMEOUT_SECONDS = 5.0
_MOST_BYTES = 256 * 1024


class PrometheusPort(Protocol):
    """Query one Prometheus server."""

    async def value(self, query: str) -> float | str:
        """Return the present value of a query, or in words why there is none. Returns within
        seconds."""


class HttpPrometheus:
    """Asks the server at `address`, such as http://prometheus.monitoring.svc:9090."""

    def __init__(self, address: str) -> None:
        self._url = f"{address.rstrip('/')}/api/v1/query"
        self._session: aiohttp.ClientSession | None = None

    async def value(self, query: str) -> float | str:
        body = bytearray()
        try:
            async with self._opened().post(self._url, data={"query": query}) as response:
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MOST_BYTES:
                        return "Prometheus answers more than one value needs"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"Prometheus does not answer: {error!r}"
        return value_in(bytes(body))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Open the session at the first question, because it belongs to an event loop."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session


def value_in(body: bytes) -> float | str:
    """Read the value of an answer with one series, or a scalar."""
    try:
        answer: Any = json.loads(body)
        if answer["status"] != "success":
            return f"Prometheus refuses it: {str(answer.get('error'))[:200]}"
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "vector":
            if len(result) != 1:
                return f"it has {len(result)} series, and one is needed"
            result = result[0]["value"]
        value = float(result[1])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        return f"Prometheus answers something else: {error!r}"
    return "it has no number" if math.isnan(value) else value
