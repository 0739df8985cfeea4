"""What every stream of /v1/responses keeps to, however its answer came: checked event by event, and
put together as a client does."""

from __future__ import annotations

import json
from typing import Any

_BEFORE = ("response.created", "response.in_progress")
ENDS = ("response.completed", "response.incomplete", "response.failed")
_DONE = {
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.reasoning_text.delta": ("response.reasoning_text.done", "text"),
    "response.function_call_arguments.delta": (
        "response.function_call_arguments.done",
        "arguments",
    ),
    "response.custom_tool_call_input.delta": ("response.custom_tool_call_input.done", "input"),
}
_FIELD = {"function_call": "arguments", "custom_tool_call": "input"}


def events_in(stream: str) -> list[dict[str, Any]]:
    """The events of a stream's text: each has its type on a line of its own, too."""
    events = []
    for block in stream.split("\n\n"):
        if not block:
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def checked_response(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a stream ends with. Asserts that its lifecycle is well formed, and that
    what was told on the way makes the output that it ends with."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert tuple(event["type"] for event in events[:2]) == _BEFORE
    assert all(event["response"]["status"] == "in_progress" for event in events[:2])
    assert all(event["response"]["output"] == [] for event in events[:2])
    end = events[-1]
    assert end["type"] in ENDS
    assert end["type"] == f"response.{end['response']['status']}"
    assert not [event for event in events[:-1] if event["type"] in ENDS]
    items: list[dict[str, Any]] = []
    rest = events[2:-1]
    for count in _lengths(rest):
        items.append(_checked_item(rest[:count], len(items)))
        rest = rest[count:]
    output = end["response"]["output"]
    if end["type"] == "response.failed":  # one may have been under way
        assert items == output[: len(items)]
        assert len(output) - len(items) == bool(rest)
    else:
        assert (items, rest) == (output, [])
    response: dict[str, Any] = end["response"]
    return response


def _lengths(events: list[dict[str, Any]]) -> list[int]:
    """Count the events of each item that has ended."""
    ends = [
        number
        for number, event in enumerate(events, start=1)
        if event["type"] == "response.output_item.done"
    ]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _checked_item(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
    added, *between, done = events
    assert added["type"] == "response.output_item.added"
    assert all(event["output_index"] == index for event in events)
    begun, item = added["item"], done["item"]
    assert begun["status"] == "in_progress"
    assert item["status"] in ("completed", "incomplete")
    assert (begun["type"], begun["id"]) == (item["type"], item["id"])
    assert all(event["item_id"] == item["id"] for event in between)
    if item["type"] in _FIELD:
        assert begun[_FIELD[item["type"]]] == ""
        assert _text(between) == item[_FIELD[item["type"]]]
        return dict(item)
    part_added, *inner, part_done = between
    assert part_added["type"] == "response.content_part.added"
    assert part_added["part"]["text"] == ""
    assert part_done["type"] == "response.content_part.done"
    assert item["content"] == [part_done["part"]]
    assert begun["content"] == []
    assert _text(inner) == part_done["part"]["text"]
    return dict(item)


def _text(events: list[dict[str, Any]]) -> str:
    """What deltas of one kind make, which the last event says again."""
    *deltas, done = events
    text = "".join(event["delta"] for event in deltas)
    assert {_DONE[event["type"]][0] for event in deltas} <= {done["type"]}
    field = next(field for name, field in _DONE.values() if name == done["type"])
    assert done[field] == text
    return text


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """A response with what two answers to the same request may differ in left out."""
    output = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in response["output"]
    ]
    times = ("id", "created_at", "completed_at")
    return {k: v for k, v in response.items() if k not in times} | {"output": output}
