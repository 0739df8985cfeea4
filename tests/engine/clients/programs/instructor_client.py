"""instructor: typed answers by each of the ways in which it can ask for them."""

from __future__ import annotations

from typing import Any

import instructor
from anthropic import Anthropic
from exchange import KEY, MODEL, PERSON, URL, Person, report
from instructor import Mode
from openai import OpenAI

openai = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
anthropic = Anthropic(base_url=URL, api_key=KEY, max_retries=0)


def typed(client: Any, **fields: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PERSON}],
        "max_retries": 0,
        **fields,
    }
    whole = client.chat.completions.create(response_model=Person, **asked)
    *_, last = client.chat.completions.create_partial(response_model=Person, **asked)
    assert last.model_dump() == whole.model_dump()
    return whole.model_dump()


report(
    tools=typed(instructor.from_openai(openai, mode=Mode.TOOLS)),
    json=typed(instructor.from_openai(openai, mode=Mode.JSON)),
    json_schema=typed(instructor.from_openai(openai, mode=Mode.JSON_SCHEMA)),
    messages=typed(instructor.from_anthropic(anthropic), max_tokens=500),
)
