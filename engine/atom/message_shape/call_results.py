"""Order the results of calls: after the message that made the calls, in the order of the calls.

Most templates show a result without its id, so only its position identifies the call; and some show
one call of a message and drop the others. Pure; each function is linear in the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atom.message_shape.contents import Message, as_text, joined


def paired(messages: Sequence[Message], *, single: bool) -> list[Message]:
    """Put each result after its calls. single: split a message with several calls into one message
    per call, each with its result. A result without a call keeps its position."""
    made: list[Message] = []
    for index, found in _with_results(messages):
        message = messages[index]
        calls = message.get("tool_calls") or ()
        if not single or len(calls) < 2:
            made.append(message)
            made.extend(result for _, result in sorted(found, key=lambda one: one[0]))
            continue
        for place, call in enumerate(calls):
            beside = message if place == 0 else {"role": message["role"], "content": ""}
            made.append({**beside, "tool_calls": [call]})
            made.extend(result for answered, result in found if answered == place)
    return made


def _with_results(
    messages: Sequence[Message],
) -> list[tuple[int, list[tuple[int, Message]]]]:
    """Return each message that is not the result of an earlier call, by its index, with the results
    of its calls and the places of these calls."""
    kept: list[tuple[int, list[tuple[int, Message]]]] = []
    waiting: dict[str, list[tuple[list[tuple[int, Message]], int]]] = {}
    unnamed: list[tuple[list[tuple[int, Message]], int]] = []  # calls of the last message
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            identity = message.get("tool_call_id")
            calls = unnamed if identity is None else waiting.get(str(identity))
            if calls:
                # Clients count ids anew: the last message with such a call is meant.
                found, place = calls.pop(0 if identity is None else -1)
                found.append((place, message))
                continue
        found = []
        kept.append((index, found))
        if message.get("tool_calls"):
            unnamed = [(found, place) for place, _ in enumerate(message["tool_calls"])]
        for place, call in enumerate(message.get("tool_calls") or ()):
            waiting.setdefault(str(call.get("id")), []).append((found, place))
    return kept


def named(messages: Sequence[Message]) -> list[Message]:
    """Add the function's name to each result."""
    made: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[str(call.get("id"))] = call["function"]["name"]
        if message.get("role") == "tool" and not message.get("name"):
            name = names.get(str(message.get("tool_call_id")), "")
            made.append({**message, "name": name or "tool"})
        else:
            made.append(message)
    return made


def said_by_user(messages: Sequence[Message], *, all_results: bool) -> list[Message]:
    """Turn results of calls into messages of the user; all_results: if false, only results without
    a call."""
    made: list[Message] = []
    within = False  # results of a call are here
    for message in named(messages):
        is_result = message.get("role") == "tool"
        if is_result and (all_results or not within):
            told = f"Result of {message['name']}:\n{as_text(message.get('content'))}"
            both = bool(made) and made[-1].get("told_result")
            if both:
                made[-1] = {**made[-1], "content": joined(made[-1]["content"], told)}
            else:
                made.append({"role": "user", "content": told, "told_result": True})
            continue
        within = is_result or bool(message.get("tool_calls"))
        made.append(message)
    return [
        {key: value for key, value in message.items() if key != "told_result"} for message in made
    ]


def in_content(messages: Sequence[Message], write: Any) -> list[Message]:
    """Write calls into the content as a family does, after the message's text."""
    made: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if not calls:
            made.append(message)
            continue
        content = message.get("content")
        said = content if isinstance(content, str) else as_text(content)
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        separator = "\n" if said else ""
        made.append({**plain, "content": f"{said}{separator}{write(calls)}"})
    return made
