"""LangChain: the server behind its OpenAI and Anthropic packages, and its agent with a tool."""

from __future__ import annotations

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
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


def worked(model: BaseChatModel, method: str) -> dict[str, Any]:
    chat = model.invoke(HELLO).text
    pieces = [chunk.text for chunk in model.stream(HELLO)]
    agent = create_agent(model, tools=[get_weather])
    ended = agent.invoke({"messages": [{"role": "user", "content": WEATHER}]})
    answer = ended["messages"][-1].text
    person = model.with_structured_output(Person, method=method).invoke(PERSON)
    return exchanged(chat, [piece for piece in pieces if piece], answer, person.model_dump())


common: dict[str, Any] = {"model": MODEL, "api_key": KEY, "max_retries": 0}
chats = ChatOpenAI(base_url=f"{URL}/v1", **common)
responses = ChatOpenAI(base_url=f"{URL}/v1", use_responses_api=True, **common)
messages = ChatAnthropic(base_url=URL, **common)
# Without its check it sends texts, and not tokens of a vocabulary of OpenAI's.
embedder = OpenAIEmbeddings(
    base_url=f"{EMBEDDER_URL}/v1", check_embedding_ctx_length=False, **common
)
report(
    chats=worked(chats, "json_schema"),
    chats_by_function=worked(chats, "function_calling"),
    responses=worked(responses, "json_schema"),
    messages=worked(messages, "json_schema"),
    messages_by_function=worked(messages, "function_calling"),
    embeddings=embedder.embed_documents(TEXTS),
)
