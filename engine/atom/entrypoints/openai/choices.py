"""The answers under way for one HTTP request, and the pieces that each shows of the engine's
outputs.

A request has `n` choices per prompt, prompt by prompt; `Answers` names them all, `ChoiceReader`
turns one choice's outputs into pieces (text and log-probabilities) whether they are streamed or
collected. Shared by both endpoints; knows no JSON and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from atom.answer_parsing import AnswerParsing
from atom.answer_parsing.reasoning_parser import ReasoningCounter
from atom.entrypoints.openai.logprobs import (
    LogprobFeed,
    PlacedLogprobs,
    TokenNames,
    place_prompt,
)
from atom.entrypoints.openai.responses import (
    PromptTokensDetails,
    Timings,
    Usage,
    timings_of,
    usage_of,
)
from atom.errors import RequestError
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.request import AnswerMove, FinishReason, RequestOutput, TokenLogprobs
from atom.tokenizer import Tokenizer, TokenStream

_Result = TypeVar("_Result")
_MANY_ENTRIES = 500  # log-probabilities of tokens, some milliseconds of work
_ENTRY_CHARACTERS = 32  # of a text that is parsed cost as much as one of these, at the worst


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that every body of one answer begins with. created: seconds since 1970."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class ShownTokens:
    """Figures of tokens beside the text. logprobs: the tokens' log-probabilities; prompt_logprobs:
    the prompt's, in a separate field; ids: those of the answer's tokens, and of the prompt's."""

    logprobs: bool = False
    prompt_logprobs: bool = False
    ids: bool = False

    @property
    def any(self) -> bool:
        return self.logprobs or self.prompt_logprobs or self.ids


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompts as part of the answer. texts: to put before the choices of each prompt; empty for
    none. prompt_only: the answer itself is left out."""

    texts: tuple[str, ...] = ()
    prompt_only: bool = False

    def before(self, choice: int, choices_per_prompt: int) -> str:
        """Return the text to put before a choice."""
        return self.texts[choice // choices_per_prompt] if self.texts else ""


@dataclass(frozen=True, slots=True)
class Shown:
    """Hold options of how the choices of a request are shown.

    n: choices per prompt. tokens: figures of tokens beside the text. running_usage: every event of
    a stream has the usage so far. timings: the end divides the request's time.
    skips_special_tokens: special tokens give no text. echo: the prompts as part of the answer.
    holds_back: stop strings may hold text back. parsing: how to parse the text; None if it is all
    content. names_tool: the client asked for a call of one tool. seals_reasoning: reasoning is
    given in a sealed form alone. asked_tokens: the most that the request wants, which may exceed
    the room in the context.
    """

    n: int = 1
    tokens: ShownTokens = ShownTokens()
    running_usage: bool = False
    timings: bool = False
    skips_special_tokens: bool = True
    echo: Echo = Echo()
    holds_back: bool = False
    parsing: AnswerParsing | None = None
    names_tool: bool = False
    seals_reasoning: bool = False
    asked_tokens: int | None = None

    @property
    def shown_special_ids(self) -> tuple[int, ...]:
        """Return the special tokens that parsing looks for, which then count as text."""
        return () if self.parsing is None else tuple(self.parsing.special_ids.values())


class Piece(msgspec.Struct, frozen=True):
    """Hold the addition of one output to a choice. logprobs: None if not requested. prompt: the
    prompt's own log-probabilities, with the first piece, if requested."""

    text: str
    logprobs: list[PlacedLogprobs] | None
    prompt: Sequence[TokenLogprobs | None] | None
    output: RequestOutput
    token_ids: list[int] | UnsetType = UNSET

    @property
    def tells_more(self) -> bool:
        """Return whether the piece has more than the text and the end."""
        return bool(self.logprobs or self.prompt or (self.token_ids or None))


@dataclass(slots=True)
class Choice:
    """A whole choice, collected."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[PlacedLogprobs] = field(default_factory=list)
    prompt: Sequence[TokenLogprobs | None] | None = None
    token_ids: list[int] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.logprobs += piece.logprobs or ()
        self.prompt = self.prompt or piece.prompt
        self.token_ids += piece.token_ids or ()


class ChoiceReader:
    """Turn one choice's outputs into pieces. last: its last output, once that is read, which has
    the reason and the counts."""

    last: RequestOutput | None = None
    num_output_tokens = 0

    def __init__(
        self, shown: Shown, echo: str, prompt_token_ids: Sequence[int], tokenizer: Tokenizer | None
    ) -> None:
        self._shown = shown
        self._echo = echo
        self._echoes = bool(shown.echo.texts)
        self._prompt_token_ids = prompt_token_ids
        self._tokenizer = tokenizer
        self._reasoning: ReasoningTokens | None = None
        counter = None if shown.parsing is None else shown.parsing.counter()
        if tokenizer is not None and counter is not None:
            stream = tokenizer.stream(
                skip_special_tokens=shown.skips_special_tokens, shown_ids=shown.shown_special_ids
            )
            self._reasoning = ReasoningTokens(counter, stream)
        self._feed: LogprobFeed | None = None
        if shown.tokens.logprobs:
            self._feed = LogprobFeed(
                tokenizer,
                holds_back=shown.holds_back,
                shown_characters=len(echo),
                skip_special_tokens=shown.skips_special_tokens,
                shown_special_ids=shown.shown_special_ids,
            )

    @property
    def reasoning_tokens(self) -> int | None:
        """Count the tokens of reasoning; None if reasoning is not parsed."""
        return None if self._reasoning is None else self._reasoning.total

    @property
    def shows_text_alone(self) -> bool:
        """Return whether an output that does not end the choice shows only its own text."""
        shown = self._shown
        aside = shown.tokens.any or shown.echo.prompt_only
        return not (aside or shown.running_usage or self._echoes)

    def read(self, output: RequestOutput) -> Piece:
        """Raises `RequestError` when the engine ended the request without an answer."""
        _check(output)
        self.num_output_tokens = output.num_output_tokens
        if output.finished:
            self.last = output
        if self._reasoning is not None:
            self._reasoning.add(output)
        text = "" if self._shown.echo.prompt_only else output.text
        logprobs = None if self._feed is None else self._feed.take(output)
        if logprobs is not None and self._shown.echo.prompt_only:
            logprobs = []
        if self._echoes:
            self._echoes = False
            text = self._echo + text
            if logprobs is not None and output.prompt_logprobs is not None:
                before = place_prompt(
                    self._prompt_token_ids, output.prompt_logprobs, self._tokenizer
                )
                logprobs = before + logprobs
        prompt = output.prompt_logprobs if self._shown.tokens.prompt_logprobs else None
        ids: list[int] | UnsetType = UNSET
        if self._shown.tokens.ids:
            ids = [] if self._shown.echo.prompt_only else output.output_tokens
        return Piece(text, logprobs, prompt, output, ids)


class ReasoningTokens:
    """Counts the tokens of one answer's reasoning, by their own texts: an output may hold many."""

    def __init__(self, counter: ReasoningCounter, stream: TokenStream) -> None:
        self._counter = counter
        self._stream = stream

    def add(self, output: RequestOutput) -> None:
        for token_id in output.output_tokens:
            if self._counter.over:
                return
            self._counter.add(self._stream.push(token_id))

    @property
    def total(self) -> int:
        return self._counter.total


class Answers:
    """All choices of one HTTP request."""

    def __init__(
        self, group: RequestGroup, shown: Shown, tokenizer: Tokenizer | None, names: TokenNames
    ) -> None:
        self.group = group
        self.shown = shown
        self.names = names
        self._prompts_told: set[int] = set()
        self.readers = [
            ChoiceReader(
                shown,
                shown.echo.before(index, shown.n),
                prompt_token_ids,
                tokenizer,
            )
            for index, prompt_token_ids in enumerate(group.prompt_token_ids)
        ]

    def tells_prompt_tokens(self, index: int) -> bool:
        """Return whether this is a choice's first event, which has its prompt's tokens."""
        first = index not in self._prompts_told
        self._prompts_told.add(index)
        return first

    async def collect(self) -> list[Choice]:
        """Collect every choice to its end. Raises the streams' errors."""
        choices = [Choice() for _ in self.readers]
        async for outputs in self.group:
            for index, output in outputs:
                read = partial(self.readers[index].read, output)
                choices[index].add(await _beside(read, len(output.prompt_logprobs or ())))
        if len(self.lasts) < len(choices):
            raise RequestError("the request was aborted", status=499)
        return choices

    def whole(self, index: int, choice: Choice) -> Piece:
        """Return all of a choice that was collected as one piece, as far as it is shown."""
        logprobs = choice.logprobs if self.shown.tokens.logprobs else None
        ids = choice.token_ids if self.shown.tokens.ids else UNSET
        text = "".join(choice.texts)
        return Piece(text, logprobs, choice.prompt, self.lasts[index], ids)

    @property
    def lasts(self) -> list[RequestOutput]:
        """Return the last outputs of the choices that are complete, by choice."""
        return [reader.last for reader in self.readers if reader.last is not None]

    def usage(self) -> Usage:
        """Sum the usage of all choices, once they are complete."""
        reasoning: int | None = None
        if self.shown.parsing is not None:
            counts = [reader.reasoning_tokens for reader in self.readers]
            told = [count for count in counts if count is not None]
            reasoning = sum(told) if told else None
        return usage_of(
            self.lasts,
            self.shown.n,
            prompt_only=self.shown.echo.prompt_only,
            reasoning_tokens=reasoning,
            image_tokens=self._image_tokens,
        )

    def timings(self, usage: Usage) -> Timings | UnsetType:
        """Divide the time of the request, once it is complete, if that was asked for."""
        if not self.shown.timings:
            return UNSET
        return timings_of(usage, list(self.group.times.values()))

    def moves(self) -> Sequence[AnswerMove] | UnsetType:
        """List the servers between which the answer moved, if it did and its times are shown."""
        return self.group.moves if self.shown.timings and self.group.moves else UNSET

    def usage_shown(self, usage: Usage | None) -> Usage | None:
        """Choose the usage for an event: `usage` at the end, else the usage so far if that is
        requested."""
        if usage is not None or not self.shown.running_usage:
            return usage
        prompt = sum(self.group.num_prompt_tokens[:: self.shown.n])
        completion = sum(reader.num_output_tokens for reader in self.readers)
        details = PromptTokensDetails(0, self._image_tokens or UNSET)
        return Usage(prompt, completion, prompt + completion, details)

    @property
    def _image_tokens(self) -> int:
        """Count the tokens of images in the prompts."""
        return sum(self.group.num_image_tokens[:: self.shown.n])

    def close(self) -> None:
        """Abort the running answers. May be called again."""
        self.group.close()


async def render(
    choices: Sequence[Choice], make: Callable[[], bytes], *, parses: bool = False
) -> bytes:
    """Write collected choices by `make`, on a thread if they have very many tokens. parses: it
    looks for calls or reasoning in their texts."""
    told = sum(len(choice.logprobs) + len(choice.prompt or ()) for choice in choices)
    if parses:
        told += sum(len(text) for choice in choices for text in choice.texts) // _ENTRY_CHARACTERS
    return await _beside(make, told)


async def _beside(work: Callable[[], _Result], entries: int) -> _Result:
    """Run `work`, on a thread if it takes long, because other requests wait on this one."""
    return await asyncio.to_thread(work) if takes_long(entries) else work()


def takes_long(entries: int) -> bool:
    """Return whether `entries` log-probabilities are too many to write on the event loop."""
    return entries > _MANY_ENTRIES


def _check(output: RequestOutput) -> None:
    refusal = output.refusal()
    if refusal is not None:
        raise refusal
    if output.finish_reason is FinishReason.ERROR:
        raise RequestError(f"the engine could not answer: {output.finish_detail}", status=500)
    if output.finish_reason is FinishReason.ABORT:
        raise RequestError(f"the engine ended the request: {output.finish_detail}", status=503)
