"""Ids of calls in the form that a chat template takes them.

Ids come from the server that answered, which may have been another: one that keeps to its own form
would stop the conversation here. An id that fits stays, and the same id always becomes the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from enum import Enum, auto

from atom.message_shape.contents import Message

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_NAMED = re.compile(r"functions\.(.+):\d+")
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class CallIds(Enum):
    """The form of ids. AS_SENT: any. NINE: letters and digits, nine of them (Mistral). NAMED: the
    function's name and the place of the call in the conversation, functions.NAME:0 (Kimi), which
    is all that its template shows of the name."""

    AS_SENT = auto()
    NINE = auto()
    NAMED = auto()


def fitted(messages: Sequence[Message], form: CallIds) -> list[Message]:
    """Return the messages with ids of this form."""
    if form is CallIds.AS_SENT:
        return list(messages)
    made: list[Message] = []
    known: dict[str, str] = {}
    count = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            sent, name = str(call.get("id")), call["function"]["name"]
            known[sent] = _nine(sent) if form is CallIds.NINE else _named(sent, name, count)
            calls.append({**call, "id": known[sent]})
            count += 1
        if calls:
            message = {**message, "tool_calls": calls}
        if message.get("role") == "tool":
            sent = str(message.get("tool_call_id"))
            fits = known.get(sent) or (_nine(sent) if form is CallIds.NINE else sent)
            message = {**message, "tool_call_id": fits}
        made.append(message)
    return made


def _nine(sent: str) -> str:
    if _NINE.fullmatch(sent):
        return sent
    number = int.from_bytes(hashlib.sha256(sent.encode("utf-8", "surrogatepass")).digest()[:8])
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def _named(sent: str, name: str, count: int) -> str:
    found = _NAMED.fullmatch(sent)
    return sent if found is not None and found[1] == name else f"functions.{name}:{count}"
