"""/v1/completions: one or many plain prompts to texts, whole or as one merged event stream.

Knows the API's shapes and the engine's streams; no HTTP, no chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import cast

from msgspec import UNSET

from atom.entrypoints.openai.outputs import AnswerHead, check_output, read_answer
from atom.entrypoints.openai.protocol import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from atom.entrypoints.openai.responses import TextChoice, TextCompletion, to_json, usage_of
from atom.entrypoints.openai.sampling import sampling_params_of
from atom.entrypoints.openai.sse import DONE, frame
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.input_processor import Prompt
from atom.model_engine.request import RequestOutput
from atom.model_engine.request_stream import RequestStream


async def start_completion(
    engine: AsyncLLMEngine, request: CompletionRequest, request_id: str
) -> list[RequestStream]:
    """Queue every prompt, or none: raises `RequestError` for the first that is wrong."""
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    params = sampling_params_of(request, engine.config.model.generation, max_tokens=max_tokens)
    named = {f"{request_id}-{index}": item for index, item in enumerate(prompts_of(request))}
    return await engine.add_requests(
        named, params, priority=request.priority or 0, timeout_seconds=request.timeout_seconds
    )


def prompts_of(request: CompletionRequest) -> Sequence[Prompt]:
    """A text, or one list of token ids, is one prompt; a list of either is many."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return cast("list[str] | list[list[int]]", prompt) or [[]]


async def complete_text(streams: Sequence[RequestStream], head: AnswerHead) -> bytes:
    """All answers as one JSON body."""
    answers = await asyncio.gather(*(read_answer(stream) for stream in streams))
    choices = [
        TextChoice(index, answer.text, answer.finish_reason) for index, answer in enumerate(answers)
    ]
    return to_json(
        TextCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage_of([answer.last for answer in answers]),
        )
    )


async def stream_text(
    streams: Sequence[RequestStream], head: AnswerHead, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Frames of all prompts as they come, each with its index; the usage if asked for; [DONE]."""

    def body(choices: list[TextChoice], ended: list[RequestOutput] | None = None) -> bytes:
        silent = None if with_usage else UNSET
        usage = usage_of(ended) if ended is not None else silent
        return frame(
            TextCompletion(
                id=head.id, created=head.created, model=head.model, choices=choices, usage=usage
            )
        )

    ended: list[RequestOutput] = []
    async for index, output in _merged(streams):
        check_output(output)
        if output.finished:
            ended.append(output)
        if output.text or output.finished:
            yield body([TextChoice(index, output.text, output.finish_reason)])
    if with_usage:
        yield body([], ended)
    yield DONE


async def _merged(
    streams: Sequence[RequestStream],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of all streams in the order they come."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    waiting = {asyncio.ensure_future(anext(stream)): i for i, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                output = task.result()
                index = waiting.pop(task)
                if not output.finished:
                    waiting[asyncio.ensure_future(anext(streams[index]))] = index
                yield index, output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
