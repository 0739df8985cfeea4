"""ChatClient: chats of one server, streamed, by the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atom.errors import AtomError

_SECONDS = 600.0
_MOST_ERROR_BYTES = 65_536


class ChatError(AtomError):
    """The server did not answer."""


@dataclass(slots=True)
class Said:
    """Collect an answer. calls: in OpenAI's form; figures: usage and timings, once it is over."""

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """Return the answer as a message of the conversation."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            found["tool_calls"] = self.calls
        if self.reasoning:
            found["reasoning"] = self.reasoning
        return found


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold new text of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool


@dataclass(frozen=True, slots=True)
class ChatClient:
    """Talks to one server. api_key: None for none."""

    url: str
    api_key: str | None = None

    def model(self, wanted: str | None) -> str:
        """Return the wanted model's name, or the first one that has chats. Raises `ChatError`."""
        with self._open("/v1/models", None) as answer:
            cards = json.load(answer)["data"]
        names = [str(card["id"]) for card in cards]
        if wanted is not None:
            if wanted not in names:
                raise ChatError(f"{self.url} has no model {wanted!r}; it has {', '.join(names)}")
            return wanted
        for card in cards:
            paths = card.get("supported_endpoints")
            if paths is None or "/v1/chat/completions" in paths:
                return str(card["id"])
        raise ChatError(
            f"{self.url}: {', '.join(names)} has no chats, since it has no chat template; start "
            "the server with --chat-template FILE"
        )

    def answer(
        self, fields: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], said: Said
    ) -> Iterator[Piece]:
        """Add the answer to `said` as it comes, and yield each new piece. fields: of the request
        beside its messages, such as the model. Raises `ChatError`."""
        body = {
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_timings": True,
            **fields,
        }
        with self._open("/v1/chat/completions", body) as answer:
            for line in answer:
                data = line.decode().strip().removeprefix("data: ")
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ChatError(str(event["error"].get("message", event["error"])))
                yield from _taken(event, said)

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, headers)
        try:
            return urllib.request.urlopen(asked, timeout=_SECONDS)
        except urllib.error.HTTPError as error:
            raise ChatError(_words(error.read(_MOST_ERROR_BYTES), error.code)) from error
        except (OSError, ValueError) as error:
            raise ChatError(f"{self.url}: {error}; is the server there?") from error


def _words(body: bytes, status: int) -> str:
    """Return the server's own message of an error."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: {body[:500].decode(errors='replace')}"


def _taken(event: Mapping[str, Any], said: Said) -> Iterator[Piece]:
    """Add an event to the answer, and yield its text."""
    for name in ("usage", "timings"):
        if event.get(name):
            said.figures[name] = event[name]
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        for key, is_reasoning in (("reasoning", True), ("content", False)):
            text = delta.get(key)
            if text:
                said.reasoning += text if is_reasoning else ""
                said.text += "" if is_reasoning else text
                yield Piece(text, is_reasoning)
        for call in delta.get("tool_calls") or ():
            _add_call(call, said.calls)
        said.finish_reason = choice.get("finish_reason") or said.finish_reason


def _add_call(delta: Mapping[str, Any], calls: list[dict[str, Any]]) -> None:
    while len(calls) <= delta["index"]:
        empty = {"name": "", "arguments": ""}
        calls.append({"id": "", "type": "function", "function": empty})
    call = calls[delta["index"]]
    call["id"] = delta.get("id") or call["id"]
    for key, text in (delta.get("function") or {}).items():
        call["function"][key] += text or ""
