"""What a model of a published template writes in its family's notation is read, and taken back with
its results: by chats, by the Messages API and by the Responses API, to the same prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.answer_parsing import AnswerParsing, CallArguments, CallStart, Content
from atom.answer_parsing.reasoning_parser import ReasoningStart
from atom.entrypoints.anthropic.conversation import chat_request_of
from atom.entrypoints.anthropic.protocol import MessagesRequest
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.responses.chat_request import asked_chat
from atom.entrypoints.responses.protocol import ResponsesRequest
from tests.engine.answer_parsing.written import WRITERS
from tests.support.published.models import PublishedModel, model, names

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMAS = {"weather": CITY, "forecast": CITY, "now": {"type": "object", "properties": {}}}
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "one": [("weather", {"city": "zqparisqz"})],
    "two": [("weather", {"city": "zqparisqz"}), ("forecast", {"city": "zqromeqz"})],
    "unicode": [("weather", {"city": "zq東京qz"})],
    "without arguments": [("now", {})],
    "the same twice": [("weather", {"city": "zqparisqz"}), ("weather", {"city": "zqparisqz"})],
}
Made = list[tuple[str, str, str]]  # name, arguments, id


def read(model: PublishedModel, text: str) -> tuple[str, Made]:
    """What the server makes of an answer."""
    family = model.formats.calls
    assert family is not None
    in_channels = family.name == "openai"
    parser = AnswerParsing(
        reasoning=ReasoningStart.POSSIBLE if in_channels else ReasoningStart.OVER,
        marks=None if in_channels else AnswerParsing().marks,
        calls=family,
        tools=SCHEMAS,
    ).parser()
    made: list[list[str]] = []
    content = ""
    for event in [*parser.feed(text), *parser.finish(ended=True)]:
        if isinstance(event, CallStart):
            made.append([event.name, "", event.id or f"call_{len(made)}"])
        elif isinstance(event, CallArguments):
            made[-1][1] += event.text
        elif isinstance(event, Content):
            content += event.text
    return content, [(name, arguments or "{}", identity) for name, arguments, identity in made]


def by_chat(made: Made) -> ChatCompletionRequest:
    calls = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments, identity in made
    ]
    results = [
        {"role": "tool", "tool_call_id": identity, "content": f"zqresultqz{number}"}
        for number, (_, _, identity) in enumerate(made)
    ]
    asked = {"role": "user", "content": "zqaskqz"}
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in SCHEMAS.items()
    ]
    fields = {"model": "m", "messages": [asked, called, *results], "tools": tools}
    return ChatCompletionRequest.model_validate_json(json.dumps(fields))


def by_messages(made: Made) -> ChatCompletionRequest:
    used = [
        {"type": "tool_use", "id": identity, "name": name, "input": json.loads(arguments)}
        for name, arguments, identity in made
    ]
    given = [
        {"type": "tool_result", "tool_use_id": identity, "content": f"zqresultqz{number}"}
        for number, (_, _, identity) in enumerate(made)
    ]
    turns = [("user", "zqaskqz"), ("assistant", used), ("user", given)]
    fields = {
        "model": "m",
        "max_tokens": 10,
        "messages": [{"role": role, "content": content} for role, content in turns],
        "tools": [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()],
    }
    return chat_request_of(MessagesRequest.model_validate_json(json.dumps(fields)))


def by_responses(made: Made) -> ChatCompletionRequest:
    items: list[dict[str, Any]] = [{"role": "user", "content": "zqaskqz"}]
    items += [
        {"type": "function_call", "call_id": identity, "name": name, "arguments": arguments}
        for name, arguments, identity in made
    ]
    items += [
        {"type": "function_call_output", "call_id": identity, "output": f"zqresultqz{number}"}
        for number, (_, _, identity) in enumerate(made)
    ]
    tools = [
        {"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()
    ]
    fields = {"model": "m", "input": items, "tools": tools}
    request = ResponsesRequest.model_validate_json(json.dumps(fields))
    return asked_chat(request, [], items).chat


@pytest.mark.parametrize("kind", CALLS)
def test_an_answer_is_taken_back_by_every_api(kind: str) -> None:
    writers = {id(family): write for family, write in WRITERS.values()}
    compared = 0
    for name in names():
        found = model(name)
        family = found.formats.calls
        if family is None:
            continue
        calls = CALLS[kind]
        _, made = read(found, writers[id(family)](calls))
        assert [(each, json.loads(text)) for each, text, _ in made] == calls, name
        prompts = [found.prompt(by(made)) for by in (by_chat, by_messages, by_responses)]
        assert prompts[1] == prompts[0], name
        assert prompts[2] == prompts[0], name
        _, behind = prompts[0].split("zqaskqz")
        for number, (called, values) in enumerate(calls):
            assert called in behind, name
            assert f"zqresultqz{number}" in behind, name
            for value in values.values():
                assert value in behind or json.dumps(value)[1:-1] in behind, name
        if family.mark:
            _, again = read(found, behind)
            shown = [(each, json.loads(text)) for each, text, _ in again]
            assert shown == calls, name
        compared += 1
    assert compared > 45
