"""/v1/chat/completions: a conversation to answers, and their outputs to messages or chunks.

Knows the API's shapes and the engine's stream; no HTTP, no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from atom.answer_parsing import AnswerParser, AnswerParsing, CallArguments, CallStart, Event
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.sse import DONE, frame
from atom.entrypoints.kv_transfer.answer import params_of
from atom.entrypoints.kv_transfer.leg_plan import params_of_leg
from atom.entrypoints.openai.chat_parsing import (
    answer_parsing,
    delta_of,
    events_in,
    message_of,
    shown_reason,
)
from atom.entrypoints.openai.chat_prompt import ChatPrompt, chat_prompt, chat_work
from atom.entrypoints.openai.chat_structure import chat_structure
from atom.entrypoints.openai.choices import (
    AnswerHead,
    Answers,
    Choice,
    Piece,
    Shown,
    ShownTokens,
    render,
)
from atom.entrypoints.openai.frames import StreamEvents, TextTemplate
from atom.entrypoints.openai.image_parts import read_images
from atom.entrypoints.openai.logprobs import (
    PromptLogprobs,
    TokenNames,
    chat_logprobs,
    prompt_logprobs,
)
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.entrypoints.openai.responses import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Delta,
    Usage,
)
from atom.entrypoints.openai.sampling import sampling_params_of
from atom.entrypoints.openai.thinking import thinking_budget
from atom.errors import RequestError
from atom.images.item import ImageItem
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.request import RequestOutput
from atom.model_engine.transfer_legs import Leg
from atom.sampling_params import MAX_CHOICES, SamplingParams


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Holds all that a conversation asks of the engine. parsing: of the answer's text, None if all
    of it is content."""

    prompt: ChatPrompt
    params: SamplingParams
    parsing: AnswerParsing | None


def plan_chat(
    engine: AsyncLLMEngine, request: ChatCompletionRequest, items: Sequence[ImageItem] = ()
) -> ChatPlan:
    """Render the conversation and check its options; on any thread. items: its images. Raises
    `RequestError`."""
    params = sampling_params_of(
        request,
        engine.config.model.generation,
        max_tokens=request.most_tokens(None),
        logprobs=_asked_logprobs(request),
        prompt_logprobs=request.prompt_logprobs,
    )
    tools = request.callable_tools()
    prompt = chat_prompt(engine, request, items)
    parsing = answer_parsing(engine.processor.answer_formats, request, tools, prompt.text)
    params = msgspec.structs.replace(
        params,
        shown_special_token_ids=() if parsing is None else tuple(parsing.special_ids.values()),
        structured_outputs=chat_structure(params.structured_outputs, request, parsing, tools),
        thinking=thinking_budget(
            request,
            engine.processor.answer_formats,
            parsing,
            engine.processor.tokenizer,
            template_knows_effort=engine.processor.template_names("reasoning_effort"),
        ),
        reasoning=parsing.span if parsing is not None and params.stop_strings else None,
    )
    return ChatPlan(prompt, params, parsing)


async def start_chat(
    engine: AsyncLLMEngine,
    request: ChatCompletionRequest,
    request_id: str,
    *,
    timeout_seconds: float | None = None,
    deadline_seconds: float | None = None,
    client_id: str = "",
    leg: Leg | None = None,
) -> Answers:
    """Queue the conversation. leg: of a request that another engine shares. Raises `RequestError`
    for whatever is wrong with it."""
    answers = min(max(request.n or 1, 1), MAX_CHOICES)  # another number is refused below
    reading = read_images(
        engine,
        client_id,
        request.messages,
        answers=answers,
        seconds=timeout_seconds,
        deadline_seconds=deadline_seconds,
    )
    # Queued requests hold the memory of their images themselves.
    async with reading as items:
        make_plan = partial(plan_chat, engine, request, items)
        plan = await chat_work(engine, client_id, request, make_plan)
        params, parsing = params_of_leg(plan.params, leg), plan.parsing
        try:
            group = await engine.add_requests(
                [plan.prompt.prompt],
                params,
                request_id=request_id,
                # The template writes special tokens itself.
                add_special_tokens=bool(request.add_special_tokens),
                priority=request.priority or 0,
                timeout_seconds=timeout_seconds,
                deadline_seconds=deadline_seconds,
                cache_salt=request.cache_salt or "",
                client_id=client_id,
                model=request.model,
                leg=leg,
                images=(plan.prompt.images,),
            )
        except RequestError as error:
            if error.param == "prompt":  # the rendered conversation
                error.param = "messages"
            raise
    shown = Shown(
        n=params.n,
        tokens=ShownTokens(
            logprobs=params.logprobs is not None,
            prompt_logprobs=params.prompt_logprobs is not None,
            ids=bool(request.return_token_ids),
        ),
        running_usage=request.wants_running_usage,
        timings=bool(request.return_timings),
        holds_back=bool(params.stop_strings),
        skips_special_tokens=params.skip_special_tokens,
        parsing=parsing,
        names_tool=request.names_tool,
    )
    tokenizer = engine.processor.tokenizer
    names = TokenNames(None if request.return_tokens_as_token_ids else tokenizer)
    return Answers(group, shown, tokenizer, names)


def _asked_logprobs(request: ChatCompletionRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise RequestError("top_logprobs: needs logprobs true", param="top_logprobs")
    return None


async def complete_chat(answers: Answers, head: AnswerHead) -> bytes:
    """Build the whole answer as one JSON body."""
    choices = await answers.collect()
    prompt = choices[0].prompt

    def body() -> bytes:
        usage = answers.usage()
        return to_json(
            ChatCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=[_whole(answers, index, choice) for index, choice in enumerate(choices)],
                usage=usage,
                timings=answers.timings(usage),
                system_fingerprint=answers.group.fingerprint,
                prompt_logprobs=UNSET if prompt is None else prompt_logprobs(prompt, answers.names),
                prompt_token_ids=_prompt_ids(answers),
                kv_transfer_params=params_of(answers.lasts[0].ticket, head.id),
            )
        )

    return await render(choices, body, parses=answers.shown.parsing is not None)


def _whole(answers: Answers, index: int, choice: Choice) -> ChatChoice:
    last = answers.lasts[index]
    shown = chat_logprobs(choice.logprobs, answers.names) if answers.shown.tokens.logprobs else None
    text, reason = "".join(choice.texts), str(last.finish_reason)
    parsing = answers.shown.parsing
    message = ChatAnswer(text) if parsing is None else message_of(parsing, text, reason)
    return ChatChoice(
        index,
        message,
        shown_reason(
            reason,
            called=message.tool_calls is not UNSET,
            named=answers.shown.names_tool,
        ),
        str(last.finish_detail),
        last.stop_reason,
        shown,
        choice.token_ids if answers.shown.tokens.ids else UNSET,
    )


def _prompt_ids(answers: Answers) -> Sequence[int] | UnsetType:
    """Return the single prompt's token ids if they were asked for."""
    return answers.group.prompt_token_ids[0] if answers.shown.tokens.ids else UNSET


class ChatEvents(StreamEvents):
    """EventShape of /v1/chat/completions: roles, texts as they come, finish reasons."""

    def __init__(self, answers: Answers, head: AnswerHead, *, with_usage: bool) -> None:
        super().__init__(answers, head, with_usage=with_usage)
        parsing = answers.shown.parsing
        self._parsers = [parsing.parser() for _ in answers.readers] if parsing else []
        self._templates: dict[tuple[int, type[Event], int], TextTemplate] = {}

    def opening(self) -> bytes:
        role = Delta(role="assistant", content="")
        choices = range(len(self._answers.readers))
        first = _prompt_ids(self._answers)
        return b"".join(
            self._event([ChatChunkChoice(index, role)], prompt_token_ids=UNSET if index else first)
            for index in choices
        )

    def shows_as_is(self, index: int) -> bool:
        return not self._parsers or self._parsers[index].passes_on

    def text(self, index: int, text: str) -> bytes:
        return self._event([ChatChunkChoice(index, Delta(content=text))])

    def piece(self, index: int, piece: Piece) -> bytes:
        if self._parsers:
            return self._parsed(index, piece, self._parsers[index])
        output = piece.output
        events = []
        if piece.text or piece.tells_more:
            events.append(self._addition(index, piece, Delta(content=piece.text)))
        if output.finished:
            events.append(self._event([self._end_choice(index, output)]))
        return b"".join(events)

    def _parsed(self, index: int, piece: Piece, parser: AnswerParser) -> bytes:
        """Encode a parsed piece. The first event has everything besides the text, which may still
        be held back."""
        output = piece.output
        found = events_in(parser, piece)
        events = []
        if piece.tells_more:
            first = self._delta(found.pop(0)) if found else Delta()
            events.append(self._addition(index, piece, first))
        events += (self._told(index, event) for event in found)
        if output.finished:
            events.append(self._event([self._end_choice(index, output, called=parser.called)]))
        return b"".join(events)

    def _told(self, index: int, event: Event) -> bytes:
        """Cut events that differ in their text alone from a template."""
        if isinstance(event, CallStart):
            return self._event([ChatChunkChoice(index, self._delta(event))])
        call = event.index if isinstance(event, CallArguments) else 0
        key = (index, type(event), call)
        if self._answers.shown.running_usage:
            return self._event([ChatChunkChoice(index, self._delta(event))])
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = TextTemplate(
                lambda text: self._event(
                    [ChatChunkChoice(index, self._delta(msgspec.structs.replace(event, text=text)))]
                )
            )
        return template.fill(event.text)

    def _delta(self, event: Event) -> Delta:
        parsing = self._answers.shown.parsing
        assert parsing is not None
        return delta_of(event, parsing)

    def _end_choice(
        self, index: int, output: RequestOutput, *, called: bool = False
    ) -> ChatChunkChoice:
        named = self._answers.shown.names_tool
        return ChatChunkChoice(
            index,
            Delta(),
            shown_reason(str(output.finish_reason), called=called, named=named),
            finish_detail=str(output.finish_detail),
            stop_reason=output.stop_reason,
        )

    def closing(self) -> bytes:
        usage = self._event([], usage=self._answers.usage()) if self._with_usage else b""
        return usage + DONE

    def _addition(self, index: int, piece: Piece, delta: Delta) -> bytes:
        names = self._answers.names
        logprobs = None if piece.logprobs is None else chat_logprobs(piece.logprobs, names)
        choice = ChatChunkChoice(index, delta, logprobs=logprobs, token_ids=piece.token_ids)
        if piece.prompt is None or index > 0:
            return self._event([choice])
        return self._event([choice], prompt_logprobs(piece.prompt, names))

    def _event(
        self,
        choices: list[ChatChunkChoice],
        prompt: PromptLogprobs | UnsetType = UNSET,
        usage: Usage | None = None,
        prompt_token_ids: Sequence[int] | UnsetType = UNSET,
    ) -> bytes:
        return frame(
            ChatChunk(
                id=self._head.id,
                created=self._head.created,
                model=self._head.model,
                choices=choices,
                system_fingerprint=self._answers.group.fingerprint,
                usage=self._answers.usage_shown(usage) if self._with_usage else UNSET,
                timings=UNSET if usage is None else self._answers.timings(usage),
                moves=UNSET if usage is None else self._answers.moves(),
                prompt_logprobs=prompt,
                prompt_token_ids=prompt_token_ids,
            )
        )
