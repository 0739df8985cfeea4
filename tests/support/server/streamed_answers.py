"""Streaming requests of every kind, and what their clients see of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.waiting import HANG_SECONDS, wait_until

Ask = tuple[str, dict[str, Any]]

_TEXT, _CHAT = "/v1/completions", "/v1/chat/completions"
_SCHEMA = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 40, "maxItems": 60}


def asks(tokens: int, *, per_kind: int = 1) -> list[Ask]:
    """Requests whose answers are about so many tokens, and the same whoever gives them: of each
    kind `per_kind`."""
    found: list[Ask] = []
    for number in range(per_kind):
        prompt = f"story {number}"
        plain = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": number}
        chat = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "seed": number,
        }
        schema = {"type": "json_schema", "json_schema": {"name": "colours", "schema": _SCHEMA}}
        found += [
            (_TEXT, {**plain, "temperature": 0}),
            (_TEXT, {**plain, "temperature": 0.9, "frequency_penalty": 0.4, "top_p": 0.9}),
            (_TEXT, {**plain, "temperature": 0.7, "n": 2, "repetition_penalty": 1.2}),
            (_TEXT, {**plain, "temperature": 1, "logprobs": 2, "echo": True}),
            (_TEXT, {**plain, "temperature": 1, "stop": ["zq", "never this"], "min_tokens": 20}),
            (_TEXT, {**plain, "temperature": 1, "structured_outputs": {"regex": "[ab ]{90,200}"}}),
            (_CHAT, {**chat, "temperature": 0.8, "ignore_eos": True, "logprobs": True}),
            (_CHAT, {**chat, "temperature": 0.8, "response_format": schema}),
        ]
    return found


@dataclass
class Answer:
    """What a client has read of one stream. error: that it ended with; broken: how its connection
    did."""

    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    completion_tokens: int = 0
    events: int = 0
    error: str = ""
    broken: str = ""

    @property
    def seen(self) -> tuple[Any, ...]:
        """All that must be the same whatever happened meanwhile."""
        trouble = self.error or self.broken
        return self.texts, self.logprobs, self.reasons, self.completion_tokens, trouble

    def add_line(self, line: str) -> None:
        data = line.removeprefix("data: ")
        if data and data != "[DONE]":
            self.add(json.loads(data))

    def add(self, event: dict[str, Any]) -> None:
        self.events += 1
        if "error" in event:
            self.error = event["error"]["message"]
            return
        for choice in event["choices"]:
            index = choice["index"]
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            self.logprobs.setdefault(index, []).extend(_entries(choice.get("logprobs")))
            if choice.get("finish_reason"):
                self.reasons[index] = choice["finish_reason"]
        if event.get("usage"):
            self.completion_tokens = event["usage"]["completion_tokens"]


def _entries(told: Any) -> list[Any]:
    if not told:
        return []
    if told.get("content") is not None:
        return [(entry["token"], entry["logprob"]) for entry in told["content"]]
    return list(zip(told["tokens"], told["token_logprobs"], strict=True))


class StreamedAnswers:
    """Streams that are read side by side, each on a thread."""

    def __init__(self, url: str, asked: Sequence[Ask]) -> None:
        self.answers = [Answer() for _ in asked]
        self._threads = [
            threading.Thread(target=_read, args=(url, *ask, answer), daemon=True)
            for ask, answer in zip(asked, self.answers, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def have_begun(self, events: int) -> bool:
        """Whether each stream has so many events, or has ended."""
        pairs = zip(self.answers, self._threads, strict=True)
        return all(answer.events >= events or not thread.is_alive() for answer, thread in pairs)

    def wait_begun(self, events: int = 3) -> None:
        wait_until(lambda: self.have_begun(events), "the streams have begun")

    def end(self) -> list[tuple[Any, ...]]:
        """What the clients have seen once all streams have ended."""
        for thread in self._threads:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive(), "a stream did not end"
        return [answer.seen for answer in self.answers]


def _read(url: str, path: str, fields: dict[str, Any], answer: Answer) -> None:
    body = {**fields, "stream": True, "stream_options": {"include_usage": True}}
    try:
        with httpx.stream("POST", url + path, json=body, timeout=HANG_SECONDS) as response:
            if response.status_code != 200:
                answer.error = response.read().decode()
                return
            for line in response.iter_lines():
                answer.add_line(line)
    except httpx.TransportError as error:
        answer.broken = repr(error)
