"""Reads conversations of coding agents in the format of Weka's kv-cache-tester.

A file is a JSON object with one conversation: its `requests` in order, each with counts of tokens,
ids of blocks, its time and perhaps `think_time`, and among them sub-agents with requests of their
own. The benchmark AgentX of InferenceX publishes its recordings so. A folder is all of its files.
Models' names are passed over: one server is measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atom.bounded_input.bounded_json import LISTING, BoundedJsonError, read_json_file
from atom.entrypoints.bench.replay import Departure
from atom.entrypoints.bench.traces.traced_request import (
    MOST_TOKENS,
    TracedRequest,
    blocks_do_not_fit,
)
from atom.errors import ConfigError

_CALLS = ("n", "s")  # whole answers and streams, which are replayed alike
_SUBAGENT = "subagent"
_NOT_AWAITED = "async_launched"  # status of a sub-agent that its parent does not wait for


def read_weka_trace(path: Path, second: float, count: int | None) -> list[TracedRequest]:
    """Read the first `count` requests of a file or of a folder's files in order of their names, or
    all. second: a second of the recording in seconds. Raises `ConfigError` with the place."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    requests: list[TracedRequest] = []
    for file in files:
        if count is None or len(requests) < count:
            requests += _Conversation(file, second, first=len(requests)).read()
    if not requests:
        raise ConfigError(
            f"{path}: has no request; must be a JSON file with `requests` and `block_size`, or a "
            f"folder of such"
        )
    return requests[:count]


class _Conversation:
    """Reads one file. first: place of its first request in the whole trace."""

    def __init__(self, path: Path, second: float, first: int) -> None:
        self._path = path
        self._second = second
        self._first = first
        self._requests: list[TracedRequest] = []
        self._block_tokens = 0
        self._scope = ""

    def read(self) -> list[TracedRequest]:
        try:
            trace = read_json_file(self._path, LISTING)
        except (OSError, BoundedJsonError) as error:
            raise ConfigError(
                f"{self._path}: cannot be read as JSON ({error}); check --dataset-path"
            ) from error
        if not isinstance(trace, dict) or not isinstance(trace.get("requests"), list):
            raise ConfigError(f"{self._path}: must be a JSON object with a list `requests`")
        self._block_tokens = _whole(trace, "block_size", str(self._path))
        scope = trace.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise ConfigError(f"{self._path}: hash_id_scope {scope!r}; must be local or global")
        self._scope = "" if scope == "global" else str(self._path)
        self._walk(trace["requests"], (), "requests", since=0.0)
        return self._requests

    def _walk(
        self, entries: Sequence[Any], after: tuple[int, ...], where: str, since: float
    ) -> tuple[int, ...]:
        """Take in the requests of one agent, each behind the one before it and the sub-agents
        between them; returns the last of them, for which its parent waits."""
        joined: tuple[int, ...] = ()
        for number, entry in enumerate(entries):
            at = f"{where}[{number}]"
            if not isinstance(entry, dict) or entry.get("type") not in (*_CALLS, _SUBAGENT):
                raise self._error(at, f"type must be one of {', '.join((*_CALLS, _SUBAGENT))}")
            if entry["type"] == _SUBAGENT:
                ends = self._subagent(entry, after, at, since)
                if entry.get("status") != _NOT_AWAITED:
                    joined += ends
            else:
                after = (self._call(entry, (*after, *joined), at, since),)
                joined = ()
        return after + joined

    def _subagent(
        self, entry: dict[str, Any], after: tuple[int, ...], at: str, since: float
    ) -> tuple[int, ...]:
        inner = entry.get("requests")
        if not isinstance(inner, list):
            raise self._error(at, "a sub-agent must have a list `requests`")
        began = since + self._number(entry, "t", at)
        times = [each["t"] for each in inner if isinstance(each, dict) and "t" in each]
        # Some producers count a sub-agent's times from its own start, and some from the whole's.
        relative = bool(times) and isinstance(times[0], int | float) and since + times[0] < began
        ends = self._walk(inner, after, f"{at}.requests", since=began if relative else since)
        return () if ends == after else ends

    def _call(self, entry: dict[str, Any], after: tuple[int, ...], at: str, since: float) -> int:
        where = f"{self._path}, {at}"
        input_tokens, output_tokens = _whole(entry, "in", where), _whole(entry, "out", where)
        ids = entry.get("hash_ids", [])
        if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
            raise self._error(at, "hash_ids must be a list of whole numbers")
        if ids and blocks_do_not_fit(input_tokens, len(ids), self._block_tokens):
            raise self._error(
                at,
                f"{len(ids)} hash_ids of block_size {self._block_tokens} are no prompt of "
                f"{input_tokens} tokens; correct `in`, `hash_ids` or `block_size`",
            )
        if entry.get("think_time") is not None and after:
            departure = Departure(0.0, after, self._number(entry, "think_time", at) * self._second)
        else:
            departure = Departure((since + self._number(entry, "t", at)) * self._second, after)
        self._requests.append(
            TracedRequest(
                input_tokens, output_tokens, tuple(ids), self._block_tokens, departure, self._scope
            )
        )
        return self._first + len(self._requests) - 1

    def _number(self, entry: dict[str, Any], field: str, at: str) -> float:
        value: Any = entry.get(field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise self._error(at, f"{field} is {json.dumps(value)}; must be seconds from 0")
        return float(value)

    def _error(self, at: str, message: str) -> ConfigError:
        return ConfigError(f"{self._path}, {at}: {message}")


def _whole(entry: dict[str, Any], field: str, where: str) -> int:
    value = entry.get(field)
    if type(value) is not int or not 1 <= value <= MOST_TOKENS:
        raise ConfigError(
            f"{where}: {field} is {json.dumps(value)}; must be a whole number from 1 to "
            f"{MOST_TOKENS}"
        )
    return value
