"""What a pod answers is any text: it costs bounded work, and what cannot be meant is no answer of
that pod alone."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from atom_operator.cluster.engine_http import HttpEngines
from atom_operator.domain import EngineMetrics
from atom_operator.pods import engine_metrics
from atom_operator.pods.engine_metrics import parse_metrics

CAPACITY: dict[str, Any] = {
    "weights_bytes": 10,
    "kv_bytes_per_token": 1,
    "num_blocks": 2,
    "kv_tokens": 32,
    "max_model_len": 16,
    "limited_by": "memory",
    "concurrency": [{"context_tokens": 16, "sequences": 2}],
}
NUMBERS = (float("inf"), float("-inf"), float("nan"), -1, -(2**70), 2**70, 1e308, None, "x", [], {})
_LABELS = ['finished_reason="a"} ', 'finished_reason="a"', "{", "}", '"', "\\", ",", "=", " "]
_NAMES = ["requests_finished_total", "cache_config_info", "sleeping", "requests_running"]


def answering(body: bytes) -> HttpEngines:
    """Engines whose every answer is this body."""
    engines = HttpEngines()

    async def read(_address: str, _path: str) -> bytes:
        return body

    engines._read = read  # type: ignore[method-assign]
    return engines


def ask(body: bytes) -> list[Any]:
    engines = answering(body)

    async def all_of_them() -> list[Any]:
        asked: list[Callable[[str], Any]] = [
            *(engines.health, engines.capacity, engines.metrics, engines.adapters)
        ]
        return [await each("10.0.0.1") for each in asked]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("field", [name for name in CAPACITY if name != "limited_by"])
def test_a_number_that_is_none_makes_no_capacity(field: str, value: Any) -> None:
    _, capacity, _, _ = ask(json.dumps({**CAPACITY, field: value}).encode())
    if value == 1e308 or (field == "concurrency" and value == []):
        value = None if value == 1e308 else value
    assert capacity is None or (field == "concurrency" and value == [])
    assert ask(json.dumps(CAPACITY).encode())[1] is not None


@given(
    some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
        lambda inner: (
            some.lists(inner, max_size=4)
            | some.dictionaries(
                some.sampled_from(
                    [*CAPACITY, "status", "progress", "adapters", "ranks", "total", "name"]
                ),
                inner,
                max_size=6,
            )
        ),
        max_leaves=30,
    )
)
def test_no_json_raises(answer: Any) -> None:
    ask(json.dumps(answer).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"a":' * 40_000,
        b'{"a":[' + b"{}," * 60_000 + b"{}]}",
        b'{"status":"ok","progress":{"fraction":NaN}}',
        b"\xff" * 100,
        b"",
        b'{"adapters":' + json.dumps([{"name": "x" * 200_000}]).encode() + b"}",
    ],
    ids=["deep lists", "deep objects", "many values", "NaN", "no UTF-8", "nothing", "long name"],
)
def test_texts_that_cost_much_are_no_answer(body: bytes) -> None:
    _, capacity, _, adapters = ask(body)
    assert capacity is None
    assert adapters is None


def test_names_of_adapters_have_a_length() -> None:
    item = {"name": "x" * 9000, "path": "y" * 9000, "state": "z" * 9000, "message": "m" * 9000}
    (*_, adapters) = ask(json.dumps({"adapters": [item] * 5}).encode())
    assert all(len(text) <= 4096 for each in adapters for text in (each.name, each.path))
    assert {len(each.name) for each in adapters} == {256}


@given(
    some.lists(
        some.tuples(some.sampled_from(_NAMES), some.lists(some.sampled_from(_LABELS), max_size=40)),
        max_size=8,
    )
)
@example([("requests_finished_total", ['finished_reason="a"'] * 13_000 + ["}x"])])
@example([("requests_finished_total", ['finished_reason="a"} '] * 8_000)])
def test_metrics_are_read_once(lines: list[tuple[str, list[str]]]) -> None:
    """By the steps of the interpreter: a text twice as long takes at most about twice as many."""
    body = "\n".join(f"atom:{name}{{{''.join(labels)}" for name, labels in lines).encode()
    assert isinstance(parse_metrics(body), EngineMetrics)
    assert _steps(body) <= 60 * (body.count(b"\n") + 1) + 400


def _steps(body: bytes) -> int:
    """Count the lines of Python that reading it runs."""
    count, module = 0, engine_metrics.__file__

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename == module
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parse_metrics(body)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("value", ["inf", "-1", "NaN", "1e400", "x", ""])
def test_one_bad_figure_leaves_the_others(value: str) -> None:
    text = (
        f"atom:sleeping {value}\natom:model_wakes_total 3\n"
        'atom:requests_finished_total{model="a b",finished_reason="stop"} 5\n'
        'atom:requests_finished_total{finished_reason="error",model="x"} 2\n'
    )
    found = parse_metrics(text.encode())
    assert found.sleep is None
    assert found.requests is not None
    assert (found.requests.ended, found.requests.failed) == (7, 2)
