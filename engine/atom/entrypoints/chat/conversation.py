"""Conversation: what was said, what is typed next, and the commands that begin with a slash."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atom.entrypoints.chat.client import ChatClient, ChatError, Said
from atom.entrypoints.chat.terminal import Terminal

_KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"}
_HELP = """\
/image FILE    send a picture with the next message
/tools FILE    offer the tools of a JSON list; you type the result of each call
/system TEXT   set the system message
/reasoning     show the reasoning of the last answer
/again         answer the last message again
/save FILE     write the conversation as JSON messages
/load FILE     go on with messages that /save has written
/clear         begin anew
/exit          end (as Ctrl-D); Ctrl-C stops an answer"""


class Conversation:
    """Talks with one model. fields: of every request, such as model and temperature."""

    def __init__(
        self, client: ChatClient, terminal: Terminal, fields: Mapping[str, Any], system: str
    ) -> None:
        self._client, self._terminal = client, terminal
        self._fields = dict(fields)
        self._system = system
        self._messages: list[dict[str, Any]] = []
        self._images: list[str] = []  # data URLs of the next message
        self._reasoning = ""

    def talk(self) -> None:
        """Answer each line that is typed, until the input ends."""
        while (line := self._terminal.ask(">")) is not None:
            text = line.strip()
            try:
                if text in ("/exit", "/quit", "/bye"):
                    return
                if text.startswith("/"):
                    self._command(text)
                elif text or self._images:
                    self._say(text)
            except (OSError, ValueError, ChatError) as error:
                self._terminal.note(f"error: {error}")

    def attach(self, file: Path) -> None:
        """Send a picture with the next message. Raises `OSError`, `ValueError`."""
        kind = _KINDS.get(file.suffix.lower())
        if kind is None:
            raise ValueError(f"{file}: is no picture by its name; attach a {', '.join(_KINDS)}")
        encoded = base64.b64encode(file.read_bytes()).decode()
        self._images.append(f"data:image/{kind};base64,{encoded}")

    def _say(self, text: str) -> None:
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}} for url in self._images
        ]
        if parts and text:
            parts.append({"type": "text", "text": text})
        self._images = []
        self._messages.append({"role": "user", "content": parts or text})
        self._answer()

    def _answer(self) -> None:
        """Stream an answer; ask for the results of its calls, and go on."""
        said = Said()
        stopped = False
        try:
            for piece in self._client.answer(self._fields, self._all_messages(), said):
                self._show(piece.text, said, is_reasoning=piece.is_reasoning)
        except KeyboardInterrupt:
            stopped = True
        except ChatError:
            self._messages.pop()  # so that it can be said again
            raise
        self._terminal.write("\n")
        self._reasoning = said.reasoning
        self._terminal.note(_figures(said, stopped=stopped))
        self._messages.append(said.message())
        if said.calls and not stopped:
            self._call(said.calls)

    def _all_messages(self) -> list[dict[str, Any]]:
        """Return the system message, if there is one, and the conversation's."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._messages]

    def _show(self, text: str, said: Said, *, is_reasoning: bool) -> None:
        if not is_reasoning:
            if said.text == text and said.reasoning:
                self._terminal.write("\n")
            self._terminal.write(text)
        elif said.reasoning == text:  # folded: /reasoning shows it
            self._terminal.write("thinking …", dim=True)

    def _call(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            asked = call["function"]
            self._terminal.note(f"the model calls {asked['name']}({asked['arguments']})")
            result = self._terminal.ask("result:")
            if result is None:
                return
            message = {"role": "tool", "tool_call_id": call["id"], "content": result}
            self._messages.append(message)
        self._answer()

    # ---- commands -----------------------------------------------------------------------------

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        known: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._terminal.note(_HELP),
            "/image": lambda file: self.attach(_path(file, "/image FILE")),
            "/tools": self._offer_tools,
            "/system": self._set_system,
            "/reasoning": lambda _: self._terminal.note(self._reasoning or "no reasoning"),
            "/again": lambda _: self._again(),
            "/save": self._save,
            "/load": self._load,
            "/clear": lambda _: self._messages.clear(),
        }
        if name not in known:
            raise ValueError(f"there is no command {name}; /help lists them")
        known[name](rest.strip())

    def _offer_tools(self, file: str) -> None:
        tools = json.loads(_path(file, "/tools FILE").read_text(encoding="utf-8"))
        if not isinstance(tools, list):
            raise ValueError(f"{file}: must hold a JSON list of tools")
        self._fields["tools"] = tools

    def _set_system(self, text: str) -> None:
        self._system = text

    def _again(self) -> None:
        while self._messages and self._messages[-1]["role"] != "user":
            self._messages.pop()
        if not self._messages:
            raise ValueError("there is no message yet; type one")
        self._answer()

    def _save(self, file: str) -> None:
        text = json.dumps(self._all_messages(), indent=1, ensure_ascii=False)
        _path(file, "/save FILE").write_text(text + "\n", encoding="utf-8")
        self._terminal.note(f"{len(self._messages)} messages are in {file}")

    def _load(self, file: str) -> None:
        found = json.loads(_path(file, "/load FILE").read_text(encoding="utf-8"))
        if not isinstance(found, list) or not all(
            isinstance(each, dict) and isinstance(each.get("role"), str) for each in found
        ):
            raise ValueError(f"{file}: holds no messages; load a file that /save has written")
        self._system = ""
        if found and found[0]["role"] == "system":
            self._system = str(found.pop(0)["content"])
        self._messages = found
        self._terminal.note(f"{len(found)} messages are loaded")


def _path(text: str, usage: str) -> Path:
    if not text:
        raise ValueError(f"name a file: {usage}")
    return Path(text).expanduser()


def _figures(said: Said, *, stopped: bool) -> str:
    """Tell the tokens and times of an answer."""
    usage, timings = said.figures.get("usage"), said.figures.get("timings")
    parts = ["stopped"] if stopped else []
    if said.finish_reason == "length":
        parts.append("cut at the most tokens")
    if usage:
        parts.append(f"{usage['prompt_tokens']:,} + {usage['completion_tokens']:,} tokens")
    if timings:
        parts.append(f"first after {(timings['queue_ms'] + timings['prompt_ms']) / 1000:.2f} s")
        if timings["predicted_ms"] > 0 and timings["predicted_n"] > 1:
            speed = 1000 * (timings["predicted_n"] - 1) / timings["predicted_ms"]
            parts.append(f"{speed:.1f} tokens/s")
    return " · ".join(parts)
