"""Traces: any file of the kind becomes requests with its counts, waits and shared prefixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.bench.replay import Departure
from atom.entrypoints.bench.traces.block_prompts import BlockPrompts
from atom.entrypoints.bench.traces.timed_trace import TraceUnits, read_timed_trace
from atom.entrypoints.bench.traces.traced_request import TracedRequest
from atom.entrypoints.bench.traces.weka_trace import read_weka_trace
from atom.errors import ConfigError

MILLISECONDS = TraceUnits(block_tokens=16, second=0.001)
VOCABULARY = 1000


@st.composite
def trace_lines(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lines of any timed trace: with and without blocks, sessions, waits and think times."""
    lines: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 10))):
        ids = draw(st.lists(st.integers(0, 6), max_size=5))
        last = draw(st.integers(1, 16)) if ids else draw(st.integers(1, 100))
        tokens = max(0, len(ids) - 1) * 16 + last
        line: dict[str, Any] = {
            "request_id": f"r{number}",
            "input_length": tokens,
            "output_length": draw(st.integers(1, 50)),
        }
        if ids:
            line["hash_ids"] = ids
        if draw(st.booleans()):
            line["timestamp"] = draw(st.integers(0, 5000))
        if draw(st.booleans()):
            line["session_id"] = draw(st.sampled_from("ab"))
        if draw(st.booleans()):
            line["delay"] = draw(st.integers(0, 5000))
        if lines and draw(st.booleans()):
            line["wait_for"] = draw(
                st.lists(st.sampled_from([each["request_id"] for each in lines]), max_size=2)
            )
        lines.append(line)
    return lines


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@given(trace_lines())
def test_any_trace_keeps_its_counts_and_who_waits_for_whom(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    path = write(tmp_path_factory.mktemp("trace") / "t.jsonl", lines)
    requests = read_timed_trace(path, MILLISECONDS, None)
    assert len(requests) == len(lines)
    sessions: dict[str, int] = {}
    for place, (line, request) in enumerate(zip(lines, requests, strict=True)):
        assert request.input_tokens == line["input_length"]
        assert request.output_tokens == line["output_length"]
        session = line.get("session_id")
        after = tuple(int(name[1:]) for name in line.get("wait_for", ()))
        if "wait_for" not in line and session in sessions:
            after = (sessions[session],)
        assert request.departure.after == after
        if after and "delay" in line:
            assert request.departure == Departure(0.0, after, line["delay"] * 0.001)
        else:
            assert request.departure == Departure(line.get("timestamp", 0) * 0.001, after)
        if session is not None:
            sessions[session] = place
    assert read_timed_trace(path, MILLISECONDS, 1) == requests[:1]


@given(trace_lines(), st.integers(0, 2**64))
def test_prompts_share_the_tokens_of_their_common_blocks_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]], seed: int
) -> None:
    path = write(tmp_path_factory.mktemp("trace") / "t.jsonl", lines)
    requests = read_timed_trace(path, MILLISECONDS, None)
    prompts = BlockPrompts(requests, VOCABULARY, seed)
    asked = [prompts.ask(place) for place in range(len(requests))]
    for ask, request in zip(asked, requests, strict=True):
        assert len(ask.prompt) == request.input_tokens
        assert ask.output_tokens == request.output_tokens
        assert all(0 <= token < VOCABULARY for token in ask.prompt)
    for one in range(len(asked)):
        for other in range(one):
            blocks = leading(requests[one].hash_ids, requests[other].hash_ids)
            shortest = min(requests[one].input_tokens, requests[other].input_tokens)
            shared = leading(asked[one].prompt, asked[other].prompt)
            assert shared >= min(16 * blocks, shortest)
            # Where ids differ, so do tokens: not all of the next few by chance.
            assert shared <= 16 * blocks + 4 or shared == shortest <= 16 * blocks + 16


def leading(one: Any, other: Any) -> int:
    """How many entries are equal before the first that is not."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def test_a_seed_and_a_scope_have_tokens_of_their_own() -> None:
    def prompt(seed: int, scope: str) -> Any:
        request = TracedRequest(32, 1, (1, 2), 16, Departure(), scope)
        return BlockPrompts([request], VOCABULARY, seed).ask(0).prompt

    assert prompt(1, "a") == prompt(1, "a")
    assert leading(prompt(1, "a"), prompt(2, "a")) < 4
    assert leading(prompt(1, "a"), prompt(1, "b")) < 4


GOOD = '{"input_length": 20, "output_length": 2, "request_id": "a"}'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be an object such as"),
        ('{"output_length": 2}', "input_length is missing; must be a whole number of tokens"),
        ('{"input_length": 0, "output_length": 2}', "input_length is 0; must be a whole number"),
        ('{"input_length": true, "output_length": 2}', "input_length is true"),
        ('{"input_length": 20, "output_length": 2.5}', r"output_length is 2\.5"),
        (
            '{"input_length": 512, "output_length": 2, "hash_ids": [1]}',
            r"1 hash_ids of 16 tokens are no prompt of 512; --timed-trace-chunk-hash-size must",
        ),
        ('{"input_length": 64, "output_length": 2, "hash_ids": [1, 2]}', "; 32 would fit"),
        ('{"input_length": 20, "output_length": 2, "hash_ids": ["x"]}', "list of whole numbers"),
        ('{"input_length": 20, "output_length": 2, "hash_ids": [true, 2]}', "of whole numbers"),
        ('{"input_length": 20, "output_length": 2, "timestamp": -1}', "timestamp is -1; must be"),
        ('{"input_length": 20, "output_length": 2, "delay": "1 s"}', 'delay is "1 s"; must be'),
        ('{"input_length": 20, "output_length": 2, "timestamp": Infinity}', "timestamp is Inf"),
        ('{"input_length": 20, "output_length": 2, "session_id": 4}', "session_id is 4; must be"),
        ('{"input_length": 20, "output_length": 2, "wait_for": "a"}', "a list of request_ids"),
        ('{"input_length": 20, "output_length": 2, "wait_for": ["b"]}', "'b', which is the"),
        (GOOD, "request_id 'a' is that of an earlier line; give each request its own"),
    ],
)
def test_a_bad_line_is_named_with_what_and_the_remedy(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n\n{line}\n")
    with pytest.raises(ConfigError, match=rf"t\.jsonl, line 3: .*{told}"):
        read_timed_trace(path, MILLISECONDS, None)


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(ConfigError, match="check --dataset-path"):
        read_timed_trace(path, MILLISECONDS, None)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="has no request; write one per line"):
        read_timed_trace(path, MILLISECONDS, None)


def call(t: float, tokens: int, **fields: Any) -> dict[str, Any]:
    ids = list(range(1, tokens // 64 + 1))
    return {"t": t, "type": "s", "in": tokens, "out": 5, "hash_ids": ids, **fields}


def conversation(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "x", "block_size": 64, "requests": list(requests), **fields}


def weka(path: Path, trace: dict[str, Any], second: float = 1.0) -> list[TracedRequest]:
    path.write_text(json.dumps(trace))
    return read_weka_trace(path, second, None)


def test_an_agent_waits_for_its_sub_agents_and_thinks(tmp_path: Path) -> None:
    def sub(t: float, *inner: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"t": t, "type": "subagent", "agent_id": "a", "requests": list(inner), **fields}

    requests = weka(
        tmp_path / "c.json",
        conversation(
            call(2.0, 70),
            sub(5.0, call(5.0, 64, think_time=1.0), call(9.0, 130, think_time=0.5)),
            sub(6.0, call(0.5, 64)),  # its times are from its own start
            sub(6.0, call(6.0, 64), status="async_launched"),
            call(30.0, 200, think_time=3.0, type="n"),
            call(40.0, 260),
        ),
        second=0.5,
    )
    assert [request.departure for request in requests] == [
        Departure(1.0),
        Departure(0.0, (0,), 0.5),
        Departure(0.0, (1,), 0.25),
        Departure(3.25, (0,)),
        Departure(3.0, (0,)),
        Departure(0.0, (0, 2, 3), 1.5),
        Departure(20.0, (5,)),
    ]
    assert [request.input_tokens for request in requests] == [70, 64, 130, 64, 64, 200, 260]
    assert requests[0].hash_ids == (1,)  # whole blocks only: the rest is its own


def test_a_folder_is_all_of_its_conversations_and_ids_are_each_ones_own(tmp_path: Path) -> None:
    for name, scope in (("b", {}), ("a", {}), ("c", {"hash_id_scope": "global"})):
        trace = conversation(call(0.0, 64), call(1.0, 128), **scope)
        (tmp_path / f"{name}.json").write_text(json.dumps(trace))
    requests = read_weka_trace(tmp_path, 1.0, None)
    assert [request.departure.after for request in requests] == [(), (0,), (), (2,), (), (4,)]
    assert len({request.scope for request in requests}) == 3
    assert read_weka_trace(tmp_path, 1.0, 3) == requests[:3]


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ([], "must be a JSON object with a list `requests`"),
        ({"requests": []}, "block_size is null; must be a whole number from 1"),
        (conversation(), "has no request"),
        (conversation(call(0.0, 64), hash_id_scope="mine"), "'mine'; must be local or global"),
        (conversation(call(0.0, 64, type="x")), r"requests\[0\]: type must be one of n, s, suba"),
        (conversation(call(0.0, 64, out=0)), r"requests\[0\]: out is 0"),
        (conversation(call(0.0, 64, hash_ids=[1, 2, 3])), "3 hash_ids of block_size 64 are no"),
        (conversation(call(-1.0, 64)), r"requests\[0\]: t is -1.0; must be seconds from 0"),
        (conversation({"t": 0, "type": "subagent"}), "a sub-agent must have a list `requests`"),
        (
            conversation({"t": 0, "type": "subagent", "requests": [call(0, 64, hash_ids=["x"])]}),
            r"requests\[0\].requests\[0\]: hash_ids must be a list of whole numbers",
        ),
    ],
)
def test_a_bad_conversation_is_named_with_the_place(tmp_path: Path, trace: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"c\.json.*{told}"):
        weka(tmp_path / "c.json", trace)
