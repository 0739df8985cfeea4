"""The requests of the attacking client: for each row of the table, their bodies and their number.

Pure: a row and a random generator give the body of one request, its goal and the verdict. Bodies
are valid JSON for `atom serve` on a model with a context of 2,048 tokens; some are refused by
design, since a refusal costs the server work too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.neighbours.pictures import KINDS, parts_of

MODEL = "bench"
MOST_TIMES_IDLE = 5.0
MOST_TIMES_IDLE_OF_A_CROWD = 10.0
MOST_GAP_SECONDS = 0.5
MOST_LATE_SECONDS = 0.05
_CONTEXT_TOKENS = 1_800
_VOCABULARY = 256
_STORED_RESPONSES = 24
_AMBIGUOUS = "root ::= r0 r0\n" + "\n".join(f'r{i} ::= r{i + 1} r{i + 1} | ""' for i in range(12))
_GRAMMAR = f'{_AMBIGUOUS}\nr12 ::= [a-z] | ""'

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One attack. connections: how many requests are open at a time; each is sent again as soon as
    its answer has ended. body: makes one request's body. prepared: bodies that are sent once before
    the measurement. reads: False to leave every answer unread. pictures: the server has a model
    that reads images, and the longest gap is at most MOST_LATE_SECONDS above that of the idle
    server."""

    name: str
    path: str
    connections: int
    body: Callable[[random.Random], Body]
    most_times_idle: float = MOST_TIMES_IDLE
    prepared: Callable[[], list[Body]] = list
    reads: bool = True
    pictures: bool = False


@dataclass(frozen=True, slots=True)
class Victim:
    """The times of the other client, in seconds. first_tokens: one for each short request; gap: the
    longest time between two pieces of its streams."""

    first_tokens: tuple[float, ...]
    gap: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table. times_idle: the median first token by the idle server's."""

    name: str
    median_ms: float
    times_idle: float
    longest_ms: float
    gap_ms: float
    most_times_idle: float
    most_gap_ms: float
    held: bool


def verdict_of(row: Row, idle: Victim, seen: Victim) -> Verdict:
    """Compare what the other client saw with the goals of the row."""
    first_token = median(seen.first_tokens)
    times = first_token / median(idle.first_tokens)
    most_gap = idle.gap + MOST_LATE_SECONDS if row.pictures else MOST_GAP_SECONDS
    return Verdict(
        name=row.name,
        median_ms=first_token * 1e3,
        times_idle=times,
        longest_ms=max(seen.first_tokens) * 1e3,
        gap_ms=seen.gap * 1e3,
        most_times_idle=row.most_times_idle,
        most_gap_ms=most_gap * 1e3,
        held=times <= row.most_times_idle and seen.gap <= most_gap,
    )


def encoded(body: Body) -> bytes:
    return json.dumps(body).encode()


def completion(draw: random.Random, *, prompt_tokens: int, max_tokens: int, **fields: Any) -> Body:
    """Make a completion with random token ids, so that no prefix is cached."""
    prompt = [draw.randrange(10, _VOCABULARY) for _ in range(prompt_tokens)]
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields
    }  # fmt: skip


def _chat(content: Any, **fields: Any) -> Body:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_tokens": 16, **fields}


def _schema(draw: random.Random) -> Body:
    names = [f"p{draw.getrandbits(40):x}" for _ in range(900)]
    properties = {name: {"type": "string"} for name in names}
    schema = {"type": "object", "properties": properties, "required": names}
    described = {"name": "s", "schema": schema}
    return _chat("x", response_format={"type": "json_schema", "json_schema": described})


def _tools(_: random.Random) -> Body:
    function = {"name": "f", "description": "word " * 200_000, "parameters": {"type": "object"}}
    return _chat("x", tools=[{"type": "function", "function": function}])


def _item_reference(_: random.Random) -> Body:
    items = [{"type": "item_reference", "id": "none"}, {"role": "user", "content": "x"}]
    return {"model": MODEL, "input": items, "max_output_tokens": 16}


def _responses_to_store() -> list[Body]:
    body = {
        "model": MODEL, "input": "x", "max_output_tokens": 1_900, "top_logprobs": 20,
        "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    return [body] * _STORED_RESPONSES


def _pictures(kind: str) -> Callable[[random.Random], Body]:
    """Return the bodies of chats with the pictures of a kind."""
    ask = {"type": "text", "text": "How many squares?"}
    return lambda draw: _chat([{"role": "user", "content": [*parts_of(kind, draw), ask]}])


def _first_pictures(kind: str) -> list[Body]:
    """Return one body, whose files are made before the attack begins."""
    return [_pictures(kind)(random.Random(kind))]


_CROWD = MOST_TIMES_IDLE_OF_A_CROWD
_COMPLETIONS, _CHATS = "/v1/completions", "/v1/chat/completions"
ROWS = (
    Row("crowd", _COMPLETIONS, 300, lambda draw: completion(draw, prompt_tokens=20, max_tokens=64),
        _CROWD),
    Row("crowd-priority", _COMPLETIONS, 300,
        lambda draw: completion(draw, prompt_tokens=20, max_tokens=64, priority=-100), _CROWD),
    Row("tokenize-7mb", "/tokenize", 6, lambda _: {"model": MODEL, "prompt": "word " * 1_400_000}),
    Row("count-tokens-1mb", "/v1/messages/count_tokens", 8, lambda _: _chat("word " * 200_000)),
    Row("regex", _COMPLETIONS, 40,
        lambda draw: completion(
            draw, prompt_tokens=5, max_tokens=32, structured_outputs={"regex": "(.*)*x"})),
    Row("grammar-n30", _COMPLETIONS, 4,
        lambda draw: completion(
            draw, prompt_tokens=5, max_tokens=200, n=30,
            structured_outputs={"grammar": _GRAMMAR})),
    Row("bad-words", _COMPLETIONS, 32,
        lambda draw: completion(
            draw, prompt_tokens=5, max_tokens=64,
            bad_words=[f"word{draw.getrandbits(20)}" for _ in range(256)])),
    Row("tools-1mb", _CHATS, 8, _tools),
    Row("messages-12000", _CHATS, 4,
        lambda _: _chat([{"role": "user", "content": "a"}] * 12_000)),
    Row("long-prompts", _COMPLETIONS, 16,
        lambda draw: completion(draw, prompt_tokens=_CONTEXT_TOKENS, max_tokens=2)),
    Row("long-prompt-logprobs", _COMPLETIONS, 16,
        lambda draw: completion(
            draw, prompt_tokens=_CONTEXT_TOKENS, max_tokens=2, prompt_logprobs=20)),
    Row("schemas-900", _CHATS, 24, _schema),
    Row("text-8mb", _COMPLETIONS, 8, lambda _: {"model": MODEL, "prompt": "word " * 1_600_000}),
    Row("token-ids-8mb", _COMPLETIONS, 8, lambda _: {"model": MODEL, "prompt": [10] * 2_000_000}),
    Row("n128", _COMPLETIONS, 4,
        lambda draw: completion(draw, prompt_tokens=20, max_tokens=1_500, n=128)),
    Row("unread", _COMPLETIONS, 128,
        lambda draw: completion(
            draw, prompt_tokens=20, max_tokens=2_000, stream=True, logprobs=5), reads=False),
    Row("item-reference", "/v1/responses", 8, _item_reference, prepared=_responses_to_store),
    *(
        Row(f"pictures-{kind}", _CHATS, 8, _pictures(kind), pictures=True,
            prepared=partial(_first_pictures, kind))
        for kind in KINDS
    ),
)  # fmt: skip
