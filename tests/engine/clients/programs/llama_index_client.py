"""LlamaIndex: the server as a model like OpenAI's, its agent with a tool, and its embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

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
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike


async def worked(**kind: Any) -> dict[str, Any]:
    model = OpenAILike(
        model=MODEL,
        api_base=f"{URL}/v1",
        api_key=KEY,
        is_chat_model=True,
        context_window=8192,
        max_retries=0,
        **kind,
    )
    hello = [ChatMessage(role="user", content=HELLO)]
    chat = model.chat(hello).message.content
    pieces = [chunk.delta for chunk in model.stream_chat(hello)]
    agent = FunctionAgent(tools=[FunctionTool.from_defaults(get_weather)], llm=model)
    answer = str(await agent.run(WEATHER))
    typed = model.as_structured_llm(Person).complete(PERSON).raw
    return exchanged(chat, [piece for piece in pieces if piece], answer, typed.model_dump())


embedder = OpenAILikeEmbedding(
    model_name=MODEL, api_base=f"{EMBEDDER_URL}/v1", api_key=KEY, max_retries=0
)
report(
    chats=asyncio.run(worked(is_function_calling_model=True)),
    chats_by_schema=asyncio.run(
        worked(is_function_calling_model=True, should_use_structured_outputs=True)
    ),
    embeddings=embedder.get_text_embedding_batch(TEXTS),
)
