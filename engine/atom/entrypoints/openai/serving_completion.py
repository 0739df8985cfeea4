"""/v1/completions: one or many plain prompts to texts, whole or as one merged event stream.

Knows the API's shapes and the engine's streams; no HTTP, no chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec import UNSET, UnsetType

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import DONE, frame
from atom.entrypoints.kv_transfer.answer import params_of
from atom.entrypoints.kv_transfer.leg_plan import params_of_leg
from atom.entrypoints.openai.choices import (
    AnswerHead,
    Answers,
    Choice,
    Echo,
    Piece,
    Shown,
    ShownTokens,
    render,
)
from atom.entrypoints.openai.frames import StreamEvents
from atom.entrypoints.openai.logprobs import TokenNames, prompt_logprobs, text_logprobs
from atom.entrypoints.openai.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_ANSWERS,
    CompletionRequest,
)
from atom.entrypoints.openai.responses import TextChoice, TextCompletion, Usage
from atom.entrypoints.openai.sampling import sampling_params_of
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_processor import Prompt
from atom.model_engine.request import FinishReason
from atom.model_engine.transfer_legs import Leg


async def start_completion(
    engine: AsyncLLMEngine,
    request: CompletionRequest,
    request_id: str,
    *,
    timeout_seconds: float | None = None,
    deadline_seconds: float | None = None,
    client_id: str = "",
    leg: Leg | None = None,
) -> Answers:
    """Queue every prompt, or none: raises `RequestError` for the first that is wrong. leg: of a
    request that another engine shares."""
    prompts = prompts_of(request)
    max_tokens = request.most_tokens(DEFAULT_COMPLETION_TOKENS)
    prompt_only = bool(request.echo) and max_tokens == 0
    asked = [request.prompt_logprobs, request.logprobs if request.echo else None]
    params = sampling_params_of(
        request,
        engine.config.model.generation,
        # The engine gives at least one token; it is then left out.
        max_tokens=1 if prompt_only else max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=max((count for count in asked if count is not None), default=None),
    )
    params = params_of_leg(params, leg)
    if len(prompts) * params.n > MAX_ANSWERS:
        raise RequestError(
            f"{len(prompts)} prompts with n {params.n} are {len(prompts) * params.n} answers; at "
            f"most {MAX_ANSWERS} come in one response",
            param="n",
        )
    echoes = [await _text_of(engine, prompt) for prompt in prompts] if request.echo else []
    group = await engine.add_requests(
        prompts,
        params,
        request_id=request_id,
        priority=request.priority or 0,
        timeout_seconds=timeout_seconds,
        deadline_seconds=deadline_seconds,
        cache_salt=request.cache_salt or "",
        add_special_tokens=request.add_special_tokens is not False,
        client_id=client_id,
        model=request.model,
        leg=leg,
    )
    shown = Shown(
        n=params.n,
        tokens=ShownTokens(
            logprobs=request.logprobs is not None,
            prompt_logprobs=request.prompt_logprobs is not None,
            ids=bool(request.return_token_ids),
        ),
        running_usage=request.wants_running_usage,
        timings=bool(request.return_timings),
        skips_special_tokens=params.skip_special_tokens,
        echo=Echo(tuple(echoes), prompt_only),
        holds_back=bool(params.stop_strings),
    )
    tokenizer = engine.processor.tokenizer
    names = TokenNames(None if request.return_tokens_as_token_ids else tokenizer)
    return Answers(group, shown, tokenizer, names)


def prompts_of(request: CompletionRequest) -> Sequence[Prompt]:
    """Return the prompts: a text, or one list of token ids, is one prompt; a list of either is
    many."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return cast("list[str] | list[list[int]]", prompt) or [[]]


async def _text_of(engine: AsyncLLMEngine, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else await engine.detokenize(prompt)


async def complete_text(answers: Answers, head: AnswerHead) -> bytes:
    """Write all answers as one JSON body."""
    choices = await answers.collect()

    def body() -> bytes:
        usage = answers.usage()
        return to_json(
            TextCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[_whole(answers, index, choice) for index, choice in enumerate(choices)],
                usage=usage,
                timings=answers.timings(usage),
                system_fingerprint=answers.group.fingerprint,
                kv_transfer_params=params_of(answers.lasts[0].ticket, head.id),
            )
        )

    return await render(choices, body)


def _whole(answers: Answers, index: int, choice: Choice) -> TextChoice:
    return _text_choice(answers, index, answers.whole(index, choice))


def _text_choice(answers: Answers, index: int, piece: Piece) -> TextChoice:
    """Build a choice, or a piece's addition to it; with the end, if it ended."""
    output = piece.output
    logprobs = None if piece.logprobs is None else text_logprobs(piece.logprobs, answers.names)
    prompt = UNSET if piece.prompt is None else prompt_logprobs(piece.prompt, answers.names)
    ids = piece.token_ids
    of_prompt: Sequence[int] | UnsetType = UNSET
    if ids is not UNSET and answers.tells_prompt_tokens(index):
        of_prompt = answers.group.prompt_token_ids[index]
    if not output.finished:
        return TextChoice(
            index, piece.text, None, logprobs,
            prompt_logprobs=prompt, token_ids=ids, prompt_token_ids=of_prompt,
        )  # fmt: skip
    reason, detail, stop = output.finish_reason, output.finish_detail, output.stop_reason
    if answers.shown.echo.prompt_only:
        reason, detail, stop = FinishReason.LENGTH, "max_tokens", None
    return TextChoice(
        index, piece.text, reason, logprobs, str(detail), stop, prompt, ids, of_prompt
    )


class TextEvents(StreamEvents):
    """EventShape of /v1/completions."""

    def shows_as_is(self, index: int) -> bool:
        return True

    def text(self, index: int, text: str) -> bytes:
        return self._event([TextChoice(index, text)])

    def piece(self, index: int, piece: Piece) -> bytes:
        if piece.text or piece.tells_more or piece.output.finished:
            return self._event([_text_choice(self._answers, index, piece)])
        return b""

    def closing(self) -> bytes:
        usage = self._event([], self._answers.usage()) if self._with_usage else b""
        return usage + DONE

    def _event(self, choices: list[TextChoice], usage: Usage | None = None) -> bytes:
        return frame(
            TextCompletion(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                choices=choices,
                system_fingerprint=self._answers.group.fingerprint,
                usage=self._answers.usage_shown(usage) if self._with_usage else UNSET,
                timings=UNSET if usage is None else self._answers.timings(usage),
            )
        )
