"""Answers of the demo's model over HTTP, to the last token: for comparing two ways to serve it.

Questions are asked greedily and with a seed, streamed and whole; each once more in the same
conversation, so that the second answer repeats what was said and drafts from the text hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

_QUESTIONS = ("What is ATOM?", "What does the operator do?")
# The demo's model is so sure of what it learnt that a lower temperature says the same as none.
_SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 1.6, "seed": 11})


@dataclass(frozen=True, slots=True)
class Served:
    text: str
    tokens: tuple[str, ...]
    finish_reason: str | None
    usage: tuple[int, int]  # tokens of the prompt and of the answer


def serve_conversations(url: str, model: str) -> Iterator[Served]:
    """Every answer of every conversation, in an order that never changes."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for question in _QUESTIONS:
            for sampling in _SAMPLINGS:
                for ask in (_whole, _streamed):
                    said: list[Any] = [{"role": "user", "content": question}]
                    first = ask(client, said, model=model, **sampling)
                    yield first
                    said += [{"role": "assistant", "content": first.text}, said[0]]
                    yield ask(client, said, model=model, **sampling)


def _whole(client: OpenAI, messages: list[Any], **options: Any) -> Served:
    done = client.chat.completions.create(
        messages=messages, max_tokens=48, logprobs=True, **options
    )
    (choice,) = done.choices
    assert done.usage is not None
    return Served(
        choice.message.content or "",
        _tokens(choice),
        choice.finish_reason,
        (done.usage.prompt_tokens, done.usage.completion_tokens),
    )


def _streamed(client: OpenAI, messages: list[Any], **options: Any) -> Served:
    text, tokens, reason, usage = "", (), None, (0, 0)
    for chunk in client.chat.completions.create(
        messages=messages,
        max_tokens=48,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
        **options,
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            tokens += _tokens(choice)
            reason = choice.finish_reason or reason
        if chunk.usage is not None:
            usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
    return Served(text, tokens, reason, usage)


def _tokens(choice: Any) -> tuple[str, ...]:
    return tuple(one.token for one in (choice.logprobs.content if choice.logprobs else None) or ())
