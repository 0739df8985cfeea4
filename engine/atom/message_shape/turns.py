"""The order of turns: the system's place, and alternating roles if a template requires them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from atom.message_shape.contents import Message, joined


class SystemPlace(Enum):
    """Places of the system's messages. ANYWHERE: in any position. HEAD: once, before all others.
    FIRST_USER, LAST_USER: as the beginning of this message of the user, since the template has no
    place for them."""

    ANYWHERE = auto()
    HEAD = auto()
    FIRST_USER = auto()
    LAST_USER = auto()


def system_placed(messages: Sequence[Message], place: SystemPlace) -> list[Message]:
    """Move the system's messages to the place where the template shows them."""
    if place is SystemPlace.ANYWHERE:
        return list(messages)
    told = _late_said_by_user(messages)
    if place is SystemPlace.HEAD or not told or told[0].get("role") != "system":
        return told
    head, *others = told
    users = [index for index, message in enumerate(others) if message.get("role") == "user"]
    if not users:
        return [{**head, "role": "user"}, *others]
    chosen = users[0] if place is SystemPlace.FIRST_USER else users[-1]
    content = joined(head.get("content"), others[chosen].get("content"))
    others[chosen] = {**others[chosen], "content": content}
    return others


def _late_said_by_user(messages: Sequence[Message]) -> list[Message]:
    """Turn the system's messages after the head into the user's. Templates without a place for them
    often require alternating turns, so such a message joins a neighbouring message of the user, or
    the head's if it follows that directly."""
    made: list[Message] = []
    turned = False  # the last message is, or contains, the system's text
    for message in messages:
        late = message.get("role") == "system" and bool(made)
        before = made[-1].get("role") if made else None
        joins = before in ("system", "user") if late else turned and message.get("role") == "user"
        if joins:
            content = joined(made[-1].get("content"), message.get("content"))
            made[-1] = {**made[-1], "content": content}
        else:
            made.append({**message, "role": "user"} if late else message)
        turned = made[-1].get("role") == "user" and (late or (turned and joins))
    return made


def alternating(messages: Sequence[Message], filler: str) -> list[Message]:
    """Join neighbours of one role, so that the user's and the assistant's turns alternate and the
    user's is the first. Calls and their results are not turns: a message of the user after results
    joins the last result. filler: the text of an added turn."""
    made: list[Message] = []
    turn = "assistant"  # whose the last one was
    for message in messages:
        role = message.get("role")
        if role not in ("user", "assistant") or message.get("tool_calls"):
            made.append(message)
            continue
        before = made[-1] if made else {}
        behind_result = role == "user" and before.get("role") == "tool"
        if role == turn and (_is_turn(before, role) or behind_result):
            content = joined(before.get("content"), message.get("content"))
            made[-1] = {**before, "content": content}
            if message.get("reasoning_content") and not before.get("reasoning_content"):
                thought = {key: message[key] for key in _REASONING if key in message}
                made[-1] = {**made[-1], **thought}
            continue
        if role == turn:
            other = "assistant" if role == "user" else "user"
            made.append({"role": other, "content": filler})
        made.append(message)
        turn = str(role)
    return made


_REASONING = ("reasoning_content", "thinking", "reasoning")


def _is_turn(message: Message, role: str) -> bool:
    return message.get("role") == role and not message.get("tool_calls")


def with_user(messages: Sequence[Message], filler: str) -> list[Message]:
    """Add a user's turn to a conversation that has none."""
    if any(message.get("role") == "user" for message in messages):
        return list(messages)
    place = 0
    while place < len(messages) and messages[place].get("role") == "system":
        place += 1
    return [*messages[:place], {"role": "user", "content": filler}, *messages[place:]]


def without_empty(messages: Sequence[Message]) -> list[Message]:
    """Drop the assistant's empty turns."""
    return [
        message for message in messages
        if message.get("role") != "assistant" or message.get("content")
        or message.get("tool_calls")
        or any(message.get(name) for name in _REASONING)
    ]  # fmt: skip
