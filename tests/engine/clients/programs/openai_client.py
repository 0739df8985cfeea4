"""openai-python: chats and responses, the tool called and answered by hand."""

from __future__ import annotations

import json
from typing import Any

from exchange import (
    EMBEDDER_URL,
    FUNCTION,
    HELLO,
    KEY,
    MODEL,
    PERSON,
    TEXTS,
    URL,
    WEATHER,
    Person,
    exchanged,
    get_weather,
    report,
)
from openai import OpenAI

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chats() -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL}
    chat = client.chat.completions.create(messages=[user(HELLO)], **asked)
    with client.chat.completions.stream(messages=[user(HELLO)], **asked) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
    tools = [{"type": "function", "function": FUNCTION}]
    messages: list[Any] = [user(WEATHER)]
    first = client.chat.completions.create(messages=messages, tools=tools, **asked)
    messages.append(first.choices[0].message)
    for call in first.choices[0].message.tool_calls or []:
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = client.chat.completions.create(messages=messages, tools=tools, **asked)
    parsed = client.chat.completions.parse(messages=[user(PERSON)], response_format=Person, **asked)
    person = parsed.choices[0].message.parsed.model_dump()
    said = chat.choices[0].message.content
    return exchanged(said, pieces, second.choices[0].message.content, person)


def responses() -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL}
    chat = client.responses.create(input=HELLO, **asked)
    with client.responses.stream(input=HELLO, **asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    tools = [{"type": "function", "strict": True, **FUNCTION}]
    first = client.responses.create(input=WEATHER, tools=tools, **asked)
    results = [
        {
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": get_weather(**json.loads(item.arguments)),
        }
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(
        input=results, tools=tools, previous_response_id=first.id, **asked
    )
    parsed = client.responses.parse(input=PERSON, text_format=Person, **asked)
    person = parsed.output_parsed.model_dump()
    return exchanged(chat.output_text, pieces, second.output_text, person)


with OpenAI(base_url=f"{EMBEDDER_URL}/v1", api_key=KEY, max_retries=0) as embedder:
    vectors = embedder.embeddings.create(model=MODEL, input=TEXTS)
report(
    chats=chats(),
    responses=responses(),
    embeddings=[each.embedding for each in vectors.data],
)
