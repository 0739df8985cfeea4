"""litellm: the server as a provider of chats, of messages and of responses."""

from __future__ import annotations

import json
from typing import Any

import litellm
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

TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]


def completed(**asked: Any) -> dict[str, Any]:
    def ask(*messages: Any, **fields: Any) -> Any:
        return litellm.completion(messages=list(messages), api_key=KEY, **asked, **fields)

    hello = {"role": "user", "content": HELLO}
    chat = ask(hello).choices[0].message.content
    stream = ask(hello, stream=True)
    pieces = [chunk.choices[0].delta.content for chunk in stream]
    weather = {"role": "user", "content": WEATHER}
    first = ask(weather, tools=TOOLS).choices[0].message
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": get_weather(**json.loads(call.function.arguments)),
        }
        for call in first.tool_calls
    ]
    answer = ask(weather, first.model_dump(), *results, tools=TOOLS).choices[0].message.content
    typed = ask({"role": "user", "content": PERSON}, response_format=Person)
    person = json.loads(typed.choices[0].message.content)
    return exchanged(chat, [piece for piece in pieces if piece], answer, person)


litellm.suppress_debug_info = True
litellm.num_retries = 0
embedded = litellm.embedding(
    model=f"openai/{MODEL}", input=TEXTS, api_base=f"{EMBEDDER_URL}/v1", api_key=KEY
)
report(
    chats=completed(model=f"openai/{MODEL}", api_base=f"{URL}/v1"),
    hosted_vllm=completed(model=f"hosted_vllm/{MODEL}", api_base=f"{URL}/v1"),
    responses=completed(model=f"openai/responses/{MODEL}", api_base=f"{URL}/v1"),
    messages=completed(model=f"anthropic/{MODEL}", api_base=URL),
    embeddings=[each["embedding"] for each in embedded.data],
)
