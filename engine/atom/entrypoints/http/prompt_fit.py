"""Refuse a body whose prompt cannot fit the context, before anything is made of the body.

A conversation of more messages than the context has tokens fits no chat template, and a list of
more token ids fits no model; to parse and render either takes seconds in which other requests wait.
Only what is certain is refused here: texts have to be tokenised first. Called by body.py.
"""

from __future__ import annotations

import msgspec

from atom.errors import RequestError

_Raw = msgspec.Raw | msgspec.UnsetType
_LEAST_ITEM_BYTES = 2  # an item of a list, with its separator
# The smallest share of items with a token: templates leave out the reasoning of earlier answers,
# which is a separate item of `input`.
_FIELDS = {"messages": 1, "input": 2, "prompt": 1, "token_ids": 1}
_DIGITS = b"-0123456789"
_BLANKS = b" \t\r\n"
_HEAD_BYTES = 64


class _Prompts(msgspec.Struct):
    """The fields whose items take a token each, at least; all others are passed over."""

    messages: _Raw = msgspec.UNSET
    input: _Raw = msgspec.UNSET
    prompt: _Raw = msgspec.UNSET
    token_ids: _Raw = msgspec.UNSET
    truncate_prompt_tokens: _Raw = msgspec.UNSET


_prompts = msgspec.json.Decoder(_Prompts)
_items = msgspec.json.Decoder(list[msgspec.Raw])


def check_prompt_fits(data: bytes | bytearray, most_tokens: int | None) -> None:
    """Raises `RequestError` (400) for a prompt of more than most_tokens tokens; None: any number.
    What is no JSON, or of another shape, is left to the parser."""
    if most_tokens is None or len(data) <= _LEAST_ITEM_BYTES * most_tokens:
        return
    try:
        found = _prompts.decode(data)
        if found.truncate_prompt_tokens is not msgspec.UNSET:
            return
        for name, tokenless in _FIELDS.items():
            count, unit = _count(getattr(found, name))
            if count > most_tokens * tokenless:
                raise RequestError(
                    f"{name}: {count} {unit} are more than the {most_tokens} tokens that the "
                    f"context takes; shorten the prompt",
                    param=name,
                    code="context_length_exceeded",
                )
    except (msgspec.DecodeError, RecursionError):
        return


def _count(field: msgspec.Raw | msgspec.UnsetType) -> tuple[int, str]:
    """Count the messages or token ids of a field; 0 for a field of another kind."""
    if field is msgspec.UNSET:
        return 0, ""
    view = memoryview(field)
    # A look at the head: a long text is not copied to learn that it is no list.
    head = bytes(view[:_HEAD_BYTES])
    if not head.startswith(b"["):
        return 0, ""
    inside = (head[1:].lstrip(_BLANKS) or bytes(view[1:]).lstrip(_BLANKS))[:1]
    if inside and inside in _DIGITS:
        return bytes(view).count(b",") + 1, "token ids"
    return (len(_items.decode(view)), "messages") if inside == b"{" else (0, "")
