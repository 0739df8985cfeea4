"""`chat` and `logs` on the terminal, and as documents: questions, answers and log lines.

Called by the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable

import yaml

from atom_operator.plugin.chat import Message, Model, converse

# kubectl's --prefix: [pod/NAME/CONTAINER] TEXT
_PREFIXED = re.compile(r"\[pod/([^/\]]+)/([^\]]+)\] ?(.*)")


def talk(url: str, options: argparse.Namespace) -> None:
    """Send the user's questions until the end of input; each document has a whole answer."""
    questions = iter([options.message] if options.message else [])
    read: Callable[[], str | None] = (
        _ask if options.message is None else lambda: next(questions, None)
    )
    model = Model(url, os.environ.get("ATOM_API_KEY"))
    if options.output == "text":
        converse(model, read, _write, options.max_tokens)
        return
    name, messages = model.name(), list[Message]()
    while (question := read()) is not None:
        messages.append({"role": "user", "content": question})
        pieces = list(model.answer(name, messages, options.max_tokens))
        answer = "".join(piece.text for piece in pieces if not piece.is_reasoning)
        reasoning = "".join(piece.text for piece in pieces if piece.is_reasoning)
        messages.append({"role": "assistant", "content": answer})
        found = {"model": name, "question": question, "answer": answer}
        _document({**found, **({"reasoning": reasoning} if reasoning else {})}, options.output)


def show_log_line(line: str, output: str) -> None:
    """Print a line of kubectl's logs as a document."""
    match = _PREFIXED.match(line.rstrip("\n"))
    pod, container, text = match.groups() if match else (None, None, line.rstrip("\n"))
    _document({"pod": pod, "container": container, "message": text}, output)


def _document(document: dict[str, object], output: str) -> None:
    if output == "yaml":
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, explicit_start=True)
        print(text, end="", flush=True)
    else:
        print(json.dumps(document, ensure_ascii=False), flush=True)


def _ask() -> str | None:
    """Return a line of the user's; None at the end of input, or when it is left empty."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip() or None
    except EOFError:
        return None


def _write(text: str) -> None:
    print(text, end="", flush=True)
