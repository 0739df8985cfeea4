"""Reads timed traces: JSON lines in Mooncake's format, with what others have added to it.

`timestamp`, `input_length`, `output_length` and `hash_ids` are Mooncake's, and `vllm bench serve
--dataset-name timed_trace` reads them; `session_id` and `delay` (think time) are AIPerf's, and
`request_id` and `wait_for` (sub-agents) those of Dynamo's agentic traces. Other fields are passed
over. Knows files, and no clock.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.bounded_input.bounded_json import LISTING, BoundedJsonError, parse_json
from atom.entrypoints.bench.replay import Departure
from atom.entrypoints.bench.traces.traced_request import (
    MOST_TOKENS,
    TracedRequest,
    blocks_do_not_fit,
)
from atom.errors import ConfigError

_EXAMPLE = '{"timestamp": 0, "input_length": 40, "output_length": 8, "hash_ids": [1, 2, 3]}'


@dataclass(frozen=True, slots=True)
class TraceUnits:
    """Define units of a trace's numbers. block_tokens: tokens of a hash id; second: one unit of its
    times in seconds."""

    block_tokens: int
    second: float


def read_timed_trace(path: Path, units: TraceUnits, count: int | None) -> list[TracedRequest]:
    """Read the first `count` requests of a file, or all. Raises `ConfigError` with the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check --dataset-path") from error
    reader = _Reader(units)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and (count is None or len(reader.requests) < count):
            reader.take(line, f"{path}, line {number}")
    if not reader.requests:
        raise ConfigError(f"{path}: has no request; write one per line, such as {_EXAMPLE}")
    return reader.requests


class _Reader:
    def __init__(self, units: TraceUnits) -> None:
        self._units = units
        self.requests: list[TracedRequest] = []
        self._places: dict[str, int] = {}  # by request_id
        self._latest: dict[str, int] = {}  # by session_id

    def take(self, line: str, where: str) -> None:
        entry = _object(line, where)
        place = len(self.requests)
        input_tokens = _whole(entry, "input_length", where)
        hash_ids = self._hash_ids(entry, input_tokens, where)
        departure = self._departure(entry, where)
        output_tokens = _whole(entry, "output_length", where)
        self.requests.append(
            TracedRequest(
                input_tokens, output_tokens, hash_ids, self._units.block_tokens, departure
            )
        )
        request_id = _name(entry, "request_id", where)
        if request_id is not None:
            if request_id in self._places:
                raise ConfigError(
                    f"{where}: request_id {request_id!r} is that of an earlier line; give each "
                    f"request its own"
                )
            self._places[request_id] = place
        session_id = _name(entry, "session_id", where)
        if session_id is not None:
            self._latest[session_id] = place

    def _hash_ids(self, entry: dict[str, Any], input_tokens: int, where: str) -> tuple[int, ...]:
        ids = entry.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
            raise ConfigError(
                f"{where}: hash_ids must be a list of whole numbers, such as [1, 2, 3], or be left "
                f"out for a prompt that shares nothing"
            )
        if ids and blocks_do_not_fit(input_tokens, len(ids), self._units.block_tokens):
            raise ConfigError(
                f"{where}: {len(ids)} hash_ids of {self._units.block_tokens} tokens are no prompt "
                f"of {input_tokens}; --timed-trace-chunk-hash-size must be the tokens of one id "
                f"(512 in Mooncake's traces{_size_that_fits(input_tokens, len(ids))})"
            )
        return tuple(ids)

    def _departure(self, entry: dict[str, Any], where: str) -> Departure:
        """Read when a request is sent: with a delay, that long after its predecessors; without one,
        at its timestamp, but never before an answer that it waits for."""
        after = self._after(entry, where)
        at = _seconds(entry, "timestamp", where)
        delay = _seconds(entry, "delay", where)
        if delay is not None and after:
            return Departure(0.0, after, delay * self._units.second)
        return Departure((at or 0.0) * self._units.second, after)

    def _after(self, entry: dict[str, Any], where: str) -> tuple[int, ...]:
        if "wait_for" not in entry:
            session_id = _name(entry, "session_id", where)
            latest = self._latest.get(session_id) if session_id is not None else None
            return () if latest is None else (latest,)
        names = entry["wait_for"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f'{where}: wait_for must be a list of request_ids, such as ["a1"]')
        for name in names:
            if name not in self._places:
                raise ConfigError(
                    f"{where}: wait_for names {name!r}, which is the request_id of no line above; "
                    f"a request can only wait for an earlier one"
                )
        return tuple(self._places[name] for name in names)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        entry = parse_json(line, LISTING)
    except BoundedJsonError as error:
        raise ConfigError(f"{where}: is not JSON ({error}); must be such as {_EXAMPLE}") from error
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: must be an object such as {_EXAMPLE}")
    return entry


def _whole(entry: dict[str, Any], field: str, where: str) -> int:
    value = entry.get(field)
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        given = "is missing" if field not in entry else f"is {json.dumps(value)}"
        raise ConfigError(
            f"{where}: {field} {given}; must be a whole number of tokens from 1 to {MOST_TOKENS}"
        )
    return value


def _seconds(entry: dict[str, Any], field: str, where: str) -> float | None:
    value = entry.get(field)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{where}: {field} is {json.dumps(value)}; must be a number from 0")
    return float(value)


def _name(entry: dict[str, Any], field: str, where: str) -> str | None:
    value = entry.get(field)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}: {field} is {json.dumps(value)}; must be a text")
    return value


def _size_that_fits(input_tokens: int, ids: int) -> str:
    """Suggest a power of two as the block size with which the line would be valid, if there is
    one."""
    for size in (1 << power for power in range(3, 14)):
        if size != 512 and not blocks_do_not_fit(input_tokens, ids, size):
            return f"; {size} would fit this line"
    return ""
