"""OpenRequest: the one record of a request between its arrival and its end.

The state of its answer so far (its text, the counts for usage, the time of the last token), and the
destination of its outputs. Made by OutputProcessor, kept in the registry of OpenRequests; knows no
other request.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from atom.metrics import RequestMetrics
from atom.model_engine.front.answer_so_far import AnswerSoFar
from atom.model_engine.front.answer_text import AnswerText
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.request import (
    AnswerTimes,
    FinishReason,
    Request,
    RequestOutput,
    TokenLogprobs,
)
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.model_engine.wire.logprob_rows import PromptEntries

_END_OF_TEXT = "eos"
STOP_TOKEN_PREFIX = "stop_"


class TokenTimes:
    """Record the token times of one step, for the histograms. Nearly all tokens follow tokens of
    one and the same step, so each such step is observed once."""

    __slots__ = ("_counts", "_metrics", "now")

    def __init__(self, metrics: RequestMetrics, now: float) -> None:
        self._metrics = metrics
        self.now = now
        self._counts: dict[float, int] = {}  # when the tokens before came → how many

    def note(self, request: OpenRequest) -> None:
        """Record the time of one more token of a request."""
        times = request.times
        request.tokens.output += 1
        before, times.last_token = times.last_token, self.now
        if before is None:
            times.first_token = self.now
            self._metrics.time_to_first_token.observe(self.now - times.arrive)
        else:
            self._counts[before] = self._counts.get(before, 0) + 1

    def record(self) -> None:
        for before, count in self._counts.items():
            self._metrics.inter_token.observe(self.now - before, count)


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Describe the reader of a request's outputs. name: the caller's, which outputs carry. group,
    index: its reader, and its place in the reader's requests. first_number: its number on
    arrival."""

    name: str
    group: RequestGroup
    index: int
    client: str
    first_number: int


@dataclass(slots=True, eq=False)
class RequestTimes:
    """Hold the times of a request, in seconds of one clock; queue_seconds: known at its regular
    end. steps: that brought tokens. others: requests that were open on its arrival."""

    arrive: float
    first_token: float | None = None
    last_token: float | None = None
    queue_seconds: float | None = None
    steps: int = 0
    others: int = 0

    def parts(self, tokens: int) -> AnswerTimes | None:
        """Divide the time of an answer of so many tokens that has ended; None without a token, or
        if its first step is unknown."""
        first, last, waited = self.first_token, self.last_token, self.queue_seconds
        if first is None or last is None or waited is None:
            return None
        prompt = max(0.0, first - self.arrive - waited)
        return AnswerTimes(waited, prompt, last - first, self.steps, tokens, self.others)


@dataclass(slots=True, eq=False)
class RequestTokens:
    """Count the tokens of a request; cached: known at its regular end."""

    prompt: int
    output: int = 0
    cached: int = 0


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Hold the state of a request that has not ended. number: its present number in an engine.
    logprobs: the number of alternatives per token; None for no log-probabilities. prompt_logprobs:
    received and not yet shown ones; None if not requested. answered: its first output is delivered.
    ended: its last one is, or it ended early. timers: of its whole time, and of its first token.
    so_far: set if it may continue elsewhere."""

    number: int
    reader: Reader
    text: AnswerText
    times: RequestTimes
    tokens: RequestTokens
    logprobs: int | None
    prompt_logprobs: PromptEntries | None
    answered: bool = False
    ended: bool = False
    timers: list[TimerHandle] = field(default_factory=list)
    so_far: AnswerSoFar | None = None

    def go_on(self, number: int, *, lost: bool) -> Request | None:
        """Build the request that continues the answer under another number; None if the answer is
        not recorded for that, a stop string has ended the text, or too many of its engines were
        `lost`."""
        if self.so_far is None or self.text.stopped or (lost and not self.so_far.survives()):
            return None
        self.number = number
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.clear()  # they come again, from the first
        return self.so_far.request(number, tells_prompt=self.prompt_logprobs is not None)

    def take(self, tokens: list[int], times: TokenTimes) -> tuple[list[int], str]:
        """Count the next tokens: those up to a stop string, if one ends the text with them, and the
        text that is then certain."""
        text, before = "", self.tokens.output
        if self.so_far is not None:
            self.so_far.add(tokens)
        for token_id in tokens:
            times.note(self)
            text += self.text.push(token_id, self.tokens.output)
            if self.text.stopped:
                return tokens[: self.tokens.output - before], text
        return tokens, text

    def take_last(
        self, tokens: list[int], row: FinishedRow, times: TokenTimes
    ) -> tuple[list[int], str]:
        """Count the tokens that the engine ended the answer with, as far as they are shown, and
        complete its text. None are shown behind a stop string.

        The token that ended generation by its id is not part of the text, special token or not,
        unless `shows_stop_token`; an error wins over a stop string that the very token at
        fault completes."""
        if self.text.stopped:
            return [], ""
        if row.reason == FinishReason.ERROR:
            for _ in tokens:
                times.note(self)
            return tokens, ""
        ended_by_token = row.reason == FinishReason.STOP and (
            row.detail == _END_OF_TEXT or row.detail.startswith(STOP_TOKEN_PREFIX)
        )
        hidden = ended_by_token and not self.text.shows_stop_token
        shown, last = (tokens[:-1], tokens[-1:]) if hidden else (tokens, [])
        shown, text = self.take(shown, times)
        if self.text.stop_string is not None:
            return shown, text
        for _ in last:
            times.note(self)
        return [*shown, *last], text + self.text.flush(self.tokens.output)

    def output(
        self, tokens: list[int], text: str, entries: Sequence[TokenLogprobs]
    ) -> RequestOutput:
        """Build the output of a step; the prompt's log-probabilities are in the first output.
        entries: of the tokens, and perhaps of later ones that are not shown."""
        shown = None
        if self.logprobs is not None:
            shown = [_trimmed(entry, self.logprobs) for entry in entries[: len(tokens)]]
        prompt = self.prompt_logprobs
        if prompt is not None:
            self.prompt_logprobs = None
        # Positional arguments are the cheapest, and one is built per token.
        return RequestOutput(
            self.reader.name,
            tokens,
            text,
            False,
            None,
            None,
            self.tokens.prompt,
            self.tokens.output,
            0,
            shown,
            prompt,
        )


def _trimmed(entry: TokenLogprobs, wanted: int) -> TokenLogprobs:
    """Cut the alternatives to the number that the request wants; other requests may want more."""
    return replace(entry, top_logprobs=entry.top_logprobs[:wanted])
