"""openai-agents: agents over responses and over chats, whose loop calls the tool."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from exchange import HELLO, KEY, MODEL, PERSON, URL, WEATHER, Person, exchanged, get_weather, report
from openai import AsyncOpenAI


async def worked(model: Model) -> dict[str, Any]:
    plain = Agent(name="plain", instructions="Be short.", model=model)
    chat = await Runner.run(plain, HELLO)
    streamed = Runner.run_streamed(plain, HELLO)
    pieces = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    tools = Agent(name="tools", model=model, tools=[function_tool(get_weather)])
    answered = await Runner.run(tools, WEATHER)
    typed = Agent(name="typed", model=model, output_type=Person)
    person = (await Runner.run(typed, PERSON)).final_output_as(Person).model_dump()
    return exchanged(chat.final_output, pieces, answered.final_output, person)


async def main() -> None:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:
        responses = await worked(OpenAIResponsesModel(MODEL, client))
        chats = await worked(OpenAIChatCompletionsModel(MODEL, client))
    report(responses=responses, chats=chats)


asyncio.run(main())
