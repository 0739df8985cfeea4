"""Images among the parts of a conversation, of every API.

Other APIs convert their images to parts of type image_url first. A model that reads images gets
them in messages of the user and results of tools; for any other model, `chat_prompt` refuses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from atom.entrypoints.openai.protocol import ChatMessage, UnreadPart
from atom.errors import RequestError
from atom.images.image_input import AskedImage
from atom.images.image_memory import Wait, timed_out
from atom.images.item import ImageItem
from atom.message_shape.contents import as_parts
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.request import group_of

IMAGE_URL = "image_url"
_ROLES = ("user", "tool")
_DETAILS = ("auto", "low", "high")
_LONGEST_WORD = 40
# What stands before the images of results that the template has no place for among results.
_OF_RESULTS = "The images of the results above:"
_END: dict[str, Any] = {}


@contextlib.asynccontextmanager
async def read_images(
    engine: AsyncLLMEngine,
    client_id: str,
    messages: Sequence[ChatMessage] | None,
    *,
    answers: int = 0,
    seconds: float | None = None,
    deadline_seconds: float | None = None,
) -> AsyncIterator[tuple[ImageItem, ...]]:
    """Read the images of a conversation, and hold their memory within the context; none if the
    model reads text alone. answers: to be queued, 0 if tokens are only counted. seconds: that the
    request may take; deadline_seconds: until its first token, None for the server's own. Raises
    `RequestError`."""
    images = engine.images
    asked = () if images is None else tuple(_asked(messages or ()))
    if images is None or not asked:
        yield ()
        return
    if answers and images.admit is not None:
        images.admit(answers, client_id)
    _, ended_after = engine.deadlines.bounds(deadline_seconds) if answers else (None, None)
    bounds = (
        (ended_after, engine.expectations.missed),
        (seconds, timed_out),
        (images.timeout_seconds, timed_out),
    )
    waits = [Wait(most, late) for most, late in bounds if most is not None]
    wait = min(waits, key=lambda each: each.seconds, default=None)
    with images.memory.share(group_of(client_id), copies=max(answers, 1), wait=wait) as share:
        yield await images.read(share, asked)


def has_images(message: ChatMessage) -> bool:
    """Return whether a message has an image among its parts."""
    content = message.content
    return isinstance(content, list) and any(part.type == IMAGE_URL for part in content)


def image_part(url: str, place: str, detail: str | None = None) -> UnreadPart:
    """Build the part of an image that another API has at `place`."""
    part = UnreadPart(type=IMAGE_URL, image_url={"url": url, "detail": detail})
    return part.placed_at(place)


def shown_parts(index: int, message: ChatMessage) -> list[dict[str, str]]:
    """Return the parts of a message with images as chat templates know them. Raises `RequestError`
    for a part that the model does not read."""
    assert isinstance(message.content, list)
    found = []
    for number, part in enumerate(message.content):
        if part.type == IMAGE_URL:
            found.append({"type": "image"})
            continue
        if isinstance(part, UnreadPart) and message.role != "tool":
            raise not_read(index, number, part, reads="text and images")
        found.append({"type": "text", "text": part.text})
    return found


def not_read(index: int, number: int, part: UnreadPart, *, reads: str) -> RequestError:
    """Build the error for a part of a kind that the model does not read."""
    return RequestError(
        f"messages[{index}].content[{number}].type: input should be 'text', and is "
        f"{part.type!r}; this server takes {reads} only",
        param="messages",
    )


def below_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Move the images of results to a message of the user after the results, for templates that
    show them nowhere else."""
    found: list[dict[str, Any]] = []
    images = 0
    for message in (*messages, _END):
        content = message.get("content")
        if message.get("role") == "tool":
            if isinstance(content, list):
                images += sum(part["type"] == "image" for part in content)
                texts = [part["text"] for part in content if part["type"] == "text"]
                message = {**message, "content": "\n".join(texts)}
        elif images:
            parts: list[dict[str, str]] = [{"type": "text", "text": _OF_RESULTS}]
            parts += [{"type": "image"}] * images
            images = 0
            if message.get("role") == "user":
                message = {**message, "content": [*parts, *as_parts(content or "")]}
            else:
                found.append({"role": "user", "content": parts})
        found.append(message)
    return found[:-1]


def _asked(messages: Sequence[ChatMessage]) -> Iterator[AskedImage]:
    for index, message in enumerate(messages):
        if not isinstance(message.content, list):
            continue
        for number, part in enumerate(message.content):
            if isinstance(part, UnreadPart) and part.type == IMAGE_URL:
                place = part.place or f"messages[{index}].content[{number}]"
                if message.role not in _ROLES:
                    raise RequestError(
                        f"{place}: an image has no place in a message of role {message.role}; "
                        "send it in a message of the user",
                        param="messages",
                    )
                yield _of_part(part, place)


def _of_part(part: UnreadPart, place: str) -> AskedImage:
    sent = part.image_url
    given = sent if isinstance(sent, dict) else {"url": sent}
    url, detail = given.get("url"), given.get("detail")
    if not isinstance(url, str):
        raise RequestError(
            f"{place}.image_url.url: is required, a data URL or one of http or https",
            param="messages",
        )
    if detail is not None and detail not in _DETAILS:
        raise RequestError(
            f"{place}.image_url.detail: must be auto, low or high, and is "
            f"{str(detail)[:_LONGEST_WORD]!r}",
            param="messages",
        )
    return AskedImage(url, place, low=detail == "low")
