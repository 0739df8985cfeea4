"""/inference/v1/generate: token ids to token ids, whole or as events."""

from __future__ import annotations

from msgspec import UNSET

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import DONE, frame
from atom.entrypoints.kv_transfer.answer import params_of
from atom.entrypoints.openai.choices import AnswerHead, Answers, Choice, Piece, render
from atom.entrypoints.openai.frames import StreamEvents
from atom.entrypoints.openai.generation import Dialect
from atom.entrypoints.openai.logprobs import text_logprobs
from atom.entrypoints.openai.serving_completion import start_completion
from atom.entrypoints.token_in_token_out.protocol import (
    Generated,
    GeneratedTokens,
    GenerateRequest,
)
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.transfer_legs import Leg


async def start_generate(
    engine: AsyncLLMEngine,
    request: GenerateRequest,
    request_id: str,
    *,
    timeout_seconds: float | None = None,
    deadline_seconds: float | None = None,
    client_id: str = "",
    leg: Leg | None = None,
) -> Answers:
    """Queue the prompt. leg: of a request that another engine shares. Raises `RequestError`."""
    return await start_completion(
        engine,
        request.completion(),
        request_id,
        timeout_seconds=timeout_seconds,
        deadline_seconds=deadline_seconds,
        client_id=client_id,
        leg=leg,
    )


async def complete_tokens(answers: Answers, head: AnswerHead) -> bytes:
    """Write all answers as one JSON body."""
    choices = await answers.collect()

    def body() -> bytes:
        whole = [_whole(answers, index, choice) for index, choice in enumerate(choices)]
        params = params_of(answers.lasts[0].ticket, head.id)
        usage = answers.usage()
        return to_json(
            Generated(request_id=head.id, choices=whole, usage=usage, kv_transfer_params=params)
        )

    return await render(choices, body)


def _whole(answers: Answers, index: int, choice: Choice) -> GeneratedTokens:
    return _choice(answers, index, answers.whole(index, choice))


def _choice(answers: Answers, index: int, piece: Piece) -> GeneratedTokens:
    ids, output = piece.token_ids, piece.output
    return GeneratedTokens(
        index,
        [] if ids is UNSET else ids,
        output.finish_reason if output.finished else None,
        None if piece.logprobs is None else text_logprobs(piece.logprobs, answers.names),
    )


class TokenEvents(StreamEvents):
    """EventShape of /inference/v1/generate."""

    def shows_as_is(self, index: int) -> bool:
        return False

    def text(self, index: int, text: str) -> bytes:
        raise AssertionError("no text is shown")

    def piece(self, index: int, piece: Piece) -> bytes:
        choice = _choice(self._answers, index, piece)
        if not choice.token_ids and choice.finish_reason is None:
            return b""
        return frame(Generated(request_id=self._head.id, choices=[choice]))

    def closing(self) -> bytes:
        if not self._with_usage:
            return DONE
        usage = self._answers.usage()
        return frame(Generated(request_id=self._head.id, choices=[], usage=usage)) + DONE


GENERATE = Dialect(
    "/inference/v1/generate", "", GenerateRequest, Generated,
    start_generate, complete_tokens, TokenEvents,
    "Go on with token ids",
    "Token ids in, token ids out; what /v1/chat/completions/render gives can be sent as it is.",
    {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 8}},
)  # fmt: skip
