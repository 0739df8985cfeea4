"""MessageShape: how a chat template wants its messages, found out by rendering probes at start.

Templates differ in what they take: a call's arguments as an object or as text, the content of a
message with calls as "" or none, text as it is or in parts, the system's words at the head alone.
What does not suit is not always an error: a branch is not taken, and the user's text or a call is
missing without a word. So the shape that shows everything is looked for once, and every
conversation gets it. Knows no Jinja. Called by chat_template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atom.errors import RequestError

Message = Mapping[str, Any]
# Of messages and tools; None where the template raises.
Render = Callable[[Sequence[Message], Sequence[Mapping[str, Any]] | None], str | None]

_TEXT, _SAID, _VALUE, _KEY, _RESULT = "xqtextqx", "xqsaidqx", "xqvalueqx", "xqkeyqx", "xqresultqx"
_LATE = "xqlateqx"
_NAME, _ID = "xqnameqx", "xqcallqx1"  # Mistral's ids have nine characters
_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The shape of messages that a chat template expects. part_roles: whose content is a list of
    parts. takes_calls: messages may have calls. arguments_as_text: of a call; else an object.
    any_text: arguments that are no object may be given as the text that they are. no_content: of a
    message that has calls and no text. text_apart: text beside calls is a message of its own,
    before them. late_system: what the system says later is shown where it stands; else the user
    says it."""

    part_roles: frozenset[str] = frozenset()
    takes_calls: bool = True
    arguments_as_text: bool = False
    any_text: bool = True
    no_content: str | None = ""
    text_apart: bool = False
    late_system: bool = True

    def shaped(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as the template wants them. Raises `RequestError` for calls that have no
        place."""
        told = messages if self.late_system else _said_by_user(messages)
        return [made for index, message in enumerate(told) for made in self._one(index, message)]

    def _one(self, index: int, message: Message) -> Iterator[dict[str, Any]]:
        content, calls = message.get("content"), message.get("tool_calls")
        if not calls:
            yield {**message, "content": self._content(str(message.get("role")), content)}
            return
        if not self.takes_calls:
            raise RequestError(
                f"messages[{index}].tool_calls: the model's chat template has no place for calls, "
                "and would leave them out; send what they did as content",
                param="messages",
            )
        made = {**message, "tool_calls": [self._call(call) for call in calls]}
        if content and self.text_apart:
            yield {"role": message["role"], "content": self._content("assistant", content)}
            content = ""
        said = self._content("assistant", content) if content else self.no_content
        yield {**made, "content": said}

    def _content(self, role: str, content: Any) -> Any:
        in_parts = role in self.part_roles and isinstance(content, str)
        return [{"type": "text", "text": content}] if in_parts else content

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = self._arguments(function.get("arguments"))
        return {**call, "function": {**function, "arguments": arguments}}

    def _arguments(self, sent: Any) -> Any:
        found = read_arguments(sent)
        if isinstance(found, str):  # no object, whatever it is
            as_text = self.arguments_as_text or self.any_text
            return found if as_text else {"arguments": found}
        if not self.arguments_as_text:
            return found
        as_sent = isinstance(sent, str) and sent.lstrip().startswith("{")
        return sent if as_sent else json.dumps(found, ensure_ascii=False)


def _said_by_user(messages: Sequence[Message]) -> list[Message]:
    """Let the user say what the system says behind the head. Templates without a place for it often
    want turns to alternate, so it joins the user's words beside it, and the head's what precedes
    them."""
    made: list[Message] = []
    turned = False  # the last message is, or holds, what the system says
    for message in messages:
        late = message.get("role") == "system" and bool(made)
        before = made[-1].get("role") if made else None
        joins = before in ("system", "user") if late else turned and message.get("role") == "user"
        texts = [isinstance(each.get("content"), str) for each in (*made[-1:], message)]
        if joins and all(texts):
            made[-1] = {**made[-1], "content": f"{made[-1]['content']}\n\n{message['content']}"}
        else:
            made.append({**message, "role": "user"} if late else message)
        turned = made[-1].get("role") == "user" and (late or (turned and joins))
    return made


def read_arguments(sent: Any) -> dict[str, Any] | str:
    """Arguments of a call as a client sends them back: the object, or the text that is none.

    What a model wrote is taken in whatever form: a text that holds the object, twice encoded, with
    raw line breaks, cut, or no object at all; nothing and null are no arguments."""
    value = sent
    for _ in range(2):  # a text within a text
        if not isinstance(value, str):
            break
        if not value.strip():
            return {}
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            break
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    return sent if isinstance(sent, str) else json.dumps(sent, ensure_ascii=False)


class DroppedTextError(Exception):
    """No shape of a message shows what the user says."""


def find_shape(render: Render, *, mentions_calls: bool) -> MessageShape:
    """Try the shapes of a template. mentions_calls: its source has a branch for calls.

    Raises `DroppedTextError` where the user's text, or every call, would be left out silently."""
    part_roles = frozenset(
        role for role, probe in _content_probes() if _wants_parts(render, role, probe)
    )
    plain = MessageShape(part_roles=part_roles)
    shape = _with_calls(render, replace(plain, late_system=_shows_late_system(render, plain)))
    if mentions_calls and not shape.takes_calls:
        raise DroppedTextError("mentions tool_calls, and leaves calls out")
    return shape


def _content_probes() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    user = {"role": "user", "content": _TEXT}
    other = {"role": "user", "content": "xqotherqx"}
    yield "user", [user]
    yield "system", [{"role": "system", "content": _TEXT}, other]
    yield "assistant", [other, {"role": "assistant", "content": _TEXT}, other]


def _shows_late_system(render: Render, shape: MessageShape) -> bool:
    turns = [("user", _TEXT), ("assistant", _SAID), ("user", _VALUE), ("system", _LATE)]
    text = render(shape.shaped([{"role": role, "content": said} for role, said in turns]), None)
    return text is not None and 0 <= text.find(_VALUE) < text.find(_LATE)


def _wants_parts(render: Render, role: str, probe: Sequence[Message]) -> bool:
    """Return whether text of this role is shown in parts alone."""
    shown = [
        render(MessageShape(part_roles=frozenset(roles)).shaped(probe), None)
        for roles in ((), (role,), ("user", role))
    ]
    found = [text is not None and _TEXT in text for text in shown]
    if role == "user" and not any(found) and any(text is not None for text in shown):
        raise DroppedTextError("leaves out what the user says")
    return not found[0] and (found[1] or found[2])


def _with_calls(render: Render, plain: MessageShape) -> MessageShape:
    tried = [
        replace(plain, arguments_as_text=as_text, no_content=nothing)
        for as_text in (False, True)
        for nothing in ("", None)
    ]
    renderings = [(_render_call(render, shape, ""), shape) for shape in tried]
    shown = [(text, shape) for text, shape in renderings if text and _shows_call(text)]
    if not shown:
        # One that renders none of these says of each request what it has against it.
        return replace(plain, takes_calls=all(text is None for text, _ in renderings))
    _, shape = min(shown, key=lambda one: _faults(one[0]))
    beside = _render_call(render, shape, _SAID)
    both = beside is not None and _SAID in beside and _shows_call(beside)
    raw = _render_call(render, shape, "", f'{{"{_KEY}": "{_VALUE}')
    return replace(
        shape, text_apart=not both, any_text=raw is not None and f'"{_KEY}": "{_VALUE}' in raw
    )


def _render_call(
    render: Render, shape: MessageShape, content: str, arguments: str | None = None
) -> str | None:
    """A conversation with a call and its result; without the result where templates refuse it."""
    given = json.dumps({_KEY: _VALUE}) if arguments is None else arguments
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": given}}
    asked = {"role": "user", "content": _TEXT}
    called = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": _RESULT}
    whole = render(shape.shaped([asked, called, result]), [_PROBE_TOOL])
    return render(shape.shaped([asked, called]), [_PROBE_TOOL]) if whole is None else whole


def _faults(text: str) -> tuple[bool, int]:
    """Return how well a call is shown, least is best: not as Python writes an object, or as a text
    within a text, and without None for a text."""
    return f"'{_VALUE}'" in text or f'\\"{_VALUE}' in text, text.count("None")


def _shows_call(text: str) -> bool:
    """Tell the call from its tool, whose description has the name and the key but not the value."""
    before, value, _ = text.partition(_VALUE)
    return bool(value) and _NAME in before and _KEY in before
