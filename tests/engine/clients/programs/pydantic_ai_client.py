"""pydantic-ai: agents over each of the three APIs, typed by a tool and by a schema."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic
from exchange import (
    EMBEDDER_URL,
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
from openai import AsyncOpenAI
from pydantic_ai import Agent, Embedder, NativeOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


async def worked(model: Model, by_schema: bool = True) -> dict[str, Any]:
    plain = Agent(model)
    chat = (await plain.run(HELLO)).output
    async with plain.run_stream(HELLO) as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    answer = (await Agent(model, tools=[get_weather]).run(WEATHER)).output
    person = (await Agent(model, output_type=Person).run(PERSON)).output
    if by_schema:  # beside the way by a tool
        native = Agent(model, output_type=NativeOutput(Person))
        assert (await native.run(PERSON)).output == person
    return exchanged(chat, pieces, answer, person.model_dump())


async def main() -> None:
    openai = OpenAIProvider(
        openai_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    )
    anthropic = AnthropicProvider(
        anthropic_client=AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0)
    )
    embedder = AsyncOpenAI(base_url=f"{EMBEDDER_URL}/v1", api_key=KEY, max_retries=0)
    embedded = await Embedder(
        OpenAIEmbeddingModel(MODEL, provider=OpenAIProvider(openai_client=embedder))
    ).embed_documents(TEXTS)
    report(
        chats=await worked(OpenAIChatModel(MODEL, provider=openai)),
        responses=await worked(OpenAIResponsesModel(MODEL, provider=openai)),
        # It knows by their names which of Anthropic's models keep to a schema.
        messages=await worked(AnthropicModel(MODEL, provider=anthropic), by_schema=False),
        embeddings=[list(each) for each in embedded.embeddings],
    )


asyncio.run(main())
