"""A conversation's items to a chat's messages.

The parts of an answer (reasoning, text, calls) are separate items here, and one message in a chat:
neighbours are merged again, so that the template shows an answer as it was generated and the prefix
cache has it. System messages at the beginning are merged with the instructions before them, because
templates have one place for them. Files, items of tools that only OpenAI runs, and images that the
model does not read are refused by name; in a tool's result they are described in words. Pure; the
items are checked one by one, by their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from atom.entrypoints.openai.image_parts import image_part
from atom.entrypoints.openai.protocol import UnreadPart
from atom.entrypoints.request_fields.unread_parts import words_for
from atom.entrypoints.responses.custom_input import as_arguments
from atom.entrypoints.responses.reasoning_content import opened
from atom.entrypoints.responses.tools import ChatTools
from atom.errors import RequestError

Item = Mapping[str, Any]
Message = dict[str, Any]
REFERENCE = "item_reference"
MORE_TOOLS = "additional_tools"  # a separate item: it makes no message
_ROLES = ("system", "developer", "user", "assistant")
_SYSTEM = ("system", "developer")
_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_LONGEST_WORD = 64


def text_input(text: str) -> list[dict[str, Any]]:
    """Convert a text input to its message item."""
    content = [{"type": "input_text", "text": text}]
    return [{"type": "message", "role": "user", "content": content}]


def kind_of(item: Item) -> str:
    """Return an item's type; messages may omit it."""
    kind = item.get("type")
    if kind is None and "role" in item:
        return "message"
    return kind if isinstance(kind, str) else ""


def item_prefix(item: Item) -> str:
    """Choose the beginning of the id of an item that was sent without one."""
    return _PREFIXES.get(kind_of(item), "item")


@dataclass(frozen=True, slots=True)
class Reading:
    """The surroundings of an item. tools: with the model's names of them; images: the model reads
    images."""

    tools: ChatTools
    images: bool = False


def chat_messages(
    items: Sequence[Item], instructions: str | None, reading: Reading
) -> list[Message]:
    """Translate items to messages. Raises `RequestError` naming the item that cannot be read."""
    messages = _Messages()
    if instructions:
        messages.add({"role": "system", "content": instructions})
    for index, item in enumerate(items):
        read = _READERS.get(kind_of(item))
        if read is None:
            _refuse(item, f"input[{index}]")
        message = read(item, f"input[{index}]", reading)
        if message is not None:
            messages.add(message)
    if not messages.found:
        raise RequestError("input: is required, a text or a list of items", param="input")
    return messages.found


class _Messages:
    """Messages in their order, neighbours of one answer together."""

    def __init__(self) -> None:
        self.found: list[Message] = []

    def add(self, message: Message) -> None:
        last = self.found[-1] if self.found else None
        role = message["role"]
        if last is None or last["role"] != role:
            self.found.append(message)
        elif role == "assistant" and _continues(last, message):
            _join_answer(last, message)
        elif role == "system" and len(self.found) == 1:
            last["content"] = f"{last['content']}\n\n{message['content']}"
        else:
            self.found.append(message)


def _continues(last: Message, message: Message) -> bool:
    """Return whether both are of one answer: reasoning begins one, and a text does not follow
    another, nor calls."""
    if "reasoning" in message:
        return False
    return "tool_calls" in message or not (last.get("content") or last.get("tool_calls"))


def _join_answer(last: Message, message: Message) -> None:
    if message.get("content"):
        last["content"] = message["content"]
    if "tool_calls" in message:
        last.setdefault("tool_calls", []).extend(message["tool_calls"])


def _message(item: Item, place: str, reading: Reading) -> Message:
    role = item.get("role")
    if role not in _ROLES:
        raise RequestError(f"{place}.role: must be one of {', '.join(_ROLES)}", param="input")
    content, at = item.get("content"), f"{place}.content"
    shown = _content_of(content, at, reading) if role == "user" else _text_of(content, at)
    return {"role": "system" if role in _SYSTEM else role, "content": shown}


def _content_of(content: Any, place: str, reading: Reading) -> str | list[Any]:
    """Read a text, or a list of parts that are texts, and images if the model reads them."""
    if not (reading.images and isinstance(content, list) and any(map(_is_image, content))):
        return _text_of(content, place)
    found: list[Any] = []
    for index, part in enumerate(content):
        at = f"{place}[{index}]"
        image = _is_image(part)
        found.append(_image(part, at) if image else {"type": "text", "text": _part(part, at)})
    return found


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _image(part: Item, place: str) -> UnreadPart:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise RequestError(
            f"{place}.file_id: this server stores no files; send image_url",
            param="input",
            code="unsupported_parameter",
        )
    return image_part(_text(part, "image_url", place), place, part.get("detail"))


def _text_of(content: Any, place: str) -> str:
    """Read a text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{place}: must be a text or a list of parts", param="input")
    return "\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise RequestError(
            f"{place}.type: {str(kind)[:_LONGEST_WORD]!r} is not supported; this server takes text "
            f"only, as input_text, output_text or refusal",
            param="input",
            code="unsupported_parameter",
        )
    return _text(part, field, place)


def _text(item: Item, field: str, place: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise RequestError(f"{place}.{field}: is required, a text", param="input")
    return value


def _function_call(item: Item, place: str, reading: Reading) -> Message:
    return _call(item, place, reading, _text(item, "arguments", place))


def _custom_call(item: Item, place: str, reading: Reading) -> Message:
    return _call(item, place, reading, as_arguments(_text(item, "input", place)))


def _call(item: Item, place: str, reading: Reading, arguments: str) -> Message:
    name, namespace = _text(item, "name", place), str(item.get("namespace") or "")
    call = {
        "id": _text(item, "call_id", place),
        "type": "function",
        "function": {
            "name": reading.tools.name_in_history(name, namespace),
            "arguments": arguments,
        },
    }
    return {"role": "assistant", "tool_calls": [call]}


def _call_output(item: Item, place: str, reading: Reading) -> Message:
    output = item.get("output")
    if output is None:
        raise RequestError(f"{place}.output: is required, a text or a list of parts", param="input")
    if isinstance(output, list):
        output = [_readable(part, reading) for part in output]
    content = _content_of(output, f"{place}.output", reading)
    return {"role": "tool", "tool_call_id": _text(item, "call_id", place), "content": content}


def _readable(part: Any, reading: Reading) -> Any:
    """Return a part of a tool's result, or words for one that the model cannot read."""
    if reading.images and _is_image(part):
        return part
    words = words_for(part.get("type")) if isinstance(part, dict) else None
    return part if words is None else {"type": "input_text", "text": words}


def _reasoning(item: Item, place: str, reading: Reading) -> Message | None:
    """Read the reasoning's own text, else our sealed text in `encrypted_content`, else its
    summary."""
    text = _text_of(item.get("content") or [], f"{place}.content")
    sealed = item.get("encrypted_content")
    if not text and isinstance(sealed, str):
        text = opened(sealed) or ""
    text = text or _text_of(item.get("summary") or [], f"{place}.summary")
    return {"role": "assistant", "reasoning": text} if text else None


def _more_tools(item: Item, place: str, reading: Reading) -> None:
    return None


def _refuse(item: Item, place: str) -> NoReturn:
    kind = kind_of(item)[:_LONGEST_WORD]
    if kind == REFERENCE:
        identity = str(item.get("id"))[:_LONGEST_WORD]
        raise RequestError(
            f"{place}: no item {identity!r} is stored here; send the item itself",
            param="input",
            status=404,
        )
    if not kind:
        raise RequestError(
            f"{place}.type: is required, such as message or function_call_output", param="input"
        )
    raise RequestError(
        f"{place}.type: items of type {kind!r} are not supported, because this server runs no "
        f"tools of its own; leave the item out, or send its text in a message",
        param="input",
        code="unsupported_parameter",
    )


_READERS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _call_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _call_output,
    "reasoning": _reasoning,
    MORE_TOOLS: _more_tools,
}
