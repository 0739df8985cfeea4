"""`kubectl atom chat`: talk to a model through a port-forward, answers as they come.

Speaks the OpenAI API of one pod with the standard library; keeps the conversation in memory only.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom_operator.plugin.kubectl import KubectlError

_TIMEOUT_SECONDS = 600
_MOST_ERROR_BYTES = 4096
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold a piece of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """Talk to one model behind `base_url`."""

    base_url: str
    api_key: str | None = None

    def name(self) -> str:
        """Return the model's name on the server."""
        with self._open("/v1/models", None) as response:
            models: list[Mapping[str, Any]] = json.load(response)["data"]
        return str(models[0]["id"])

    def answer(
        self, name: str, messages: Sequence[Message], max_tokens: int | None
    ) -> Iterator[Piece]:
        """Yield the pieces of the answer; raises KubectlError with the server's words."""
        body: dict[str, Any] = {"model": name, "messages": list(messages), "stream": True}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        with self._open("/v1/chat/completions", body) as response:
            for line in response:
                data = line.decode().strip().removeprefix("data: ")
                if not data or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise KubectlError(str(event["error"].get("message", event["error"])))
                for choice in event.get("choices", ()):
                    yield from _pieces_of(choice.get("delta", {}))

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base_url + path, data=data, headers=headers)
        # A proxy of the environment does not know the forwarded port.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            return opener.open(request, timeout=_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            words = error.read(_MOST_ERROR_BYTES).decode(errors="replace")
            raise KubectlError(f"the server answers {error.code}: {words}") from error
        except OSError as error:
            raise KubectlError(f"the server does not answer: {error}") from error


def _pieces_of(delta: Mapping[str, Any]) -> Iterator[Piece]:
    if delta.get("reasoning"):
        yield Piece(delta["reasoning"], is_reasoning=True)
    if delta.get("content"):
        yield Piece(delta["content"])


def converse(
    model: Model,
    read: Callable[[], str | None],
    write: Callable[[str], None],
    max_tokens: int | None = None,
) -> None:
    """Send the questions from `read` until it returns None, and `write` the answers. Reasoning is
    shown before its answer, and left out of the conversation."""
    name = model.name()
    messages: list[Message] = []
    while (question := read()) is not None:
        messages.append({"role": "user", "content": question})
        answer, thinks = "", False
        for piece in model.answer(name, messages, max_tokens):
            if thinks and not piece.is_reasoning:
                write("\n\n")
            thinks = piece.is_reasoning
            answer += "" if thinks else piece.text
            write(piece.text)
        write("\n")
        messages.append({"role": "assistant", "content": answer})
