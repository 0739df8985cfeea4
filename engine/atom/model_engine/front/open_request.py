"""OpenRequest: the one record of a request between its arrival and its end.

The state of its answer so far (the incomplete character, the text that may become a stop string,
the counts for usage, the time of the last token), and the destination of its outputs. Made by
OutputProcessor, kept in the registry of OpenRequests; knows no other request.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from atom.metrics import RequestMetrics
from atom.model_engine.front.answer_so_far import AnswerSoFar
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.front.stop_strings import SpokenStops, StopMatcher
from atom.model_engine.request import FinishReason, Request, RequestOutput, TokenLogprobs
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.model_engine.wire.logprob_rows import PromptEntries
from atom.tokenizer import TokenStream

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
        request.num_output_tokens += 1
        before = request.last_token_time
        request.last_token_time = self.now
        if before is None:
            request.first_token_time = self.now
            self._metrics.time_to_first_token.observe(self.now - request.arrive_time)
        else:
            self._counts[before] = self._counts.get(before, 0) + 1

    def record(self) -> None:
        for before, count in self._counts.items():
            self._metrics.inter_token.observe(self.now - before, count)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Hold the state of a request that has not ended. name: the caller's, which outputs carry.
    min_tokens: stop strings are ignored among the first `min_tokens` tokens. logprobs: the number
    of alternatives per token; None for no log-probabilities. prompt_logprobs: received and not yet
    shown ones; None if not requested. client: its client. group, index: its reader, and its place
    in the reader's requests. stopped: a stop string ended the text, further tokens are not shown.
    queue_seconds, num_cached_tokens: known at its regular end. answered: its first output is
    delivered. ended: its last one is, or it ended early. so_far: set if it may continue elsewhere.
    number: its present number in an engine; first_number: its number on arrival."""

    number: int
    name: str
    group: RequestGroup
    index: int
    detokenizer: TokenStream
    matcher: StopMatcher | SpokenStops | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: PromptEntries | None
    num_prompt_tokens: int
    arrive_time: float
    client: str = ""
    shows_stop_token: bool = False
    num_output_tokens: int = 0
    first_token_time: float | None = None
    last_token_time: float | None = None
    queue_seconds: float | None = None
    num_cached_tokens: int = 0
    stopped: bool = False
    answered: bool = False
    ended: bool = False
    timer: TimerHandle | None = None
    so_far: AnswerSoFar | None = None
    first_number: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_number = self.number

    def go_on(self, number: int, *, lost: bool) -> Request | None:
        """Build the request that continues the answer under another number; None if the answer is
        not recorded for that, a stop string has ended the text, or too many of its engines were
        `lost`."""
        if self.so_far is None or self.stopped or (lost and not self.so_far.survives()):
            return None
        self.number = number
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.clear()  # they come again, from the first
        return self.so_far.request(number, tells_prompt=self.prompt_logprobs is not None)

    def take(self, tokens: list[int], times: TokenTimes) -> tuple[list[int], str]:
        """Count the next tokens: those up to a stop string, if one ends the text with them, and the
        text that is then certain."""
        text, before = "", self.num_output_tokens
        if self.so_far is not None:
            self.so_far.add(tokens)
        for token_id in tokens:
            times.note(self)
            piece = self.detokenizer.push(token_id)
            if self.matcher is not None:
                piece = self._match(self.matcher, piece)
                if self.stopped:
                    shown = self.num_output_tokens - before
                    return tokens[:shown], text + piece
            text += piece
        return tokens, text

    def take_last(
        self, tokens: list[int], row: FinishedRow, times: TokenTimes
    ) -> tuple[list[int], str]:
        """Count the tokens that the engine ended the answer with, as far as they are shown, and
        complete its text. None are shown behind a stop string.

        The token that ended generation by its id is not part of the text, special token or not,
        unless `shows_stop_token`; an error wins over a stop string that the very token at
        fault completes."""
        if self.stopped:
            return [], ""
        if row.reason == FinishReason.ERROR:
            for _ in tokens:
                times.note(self)
            return tokens, ""
        ended_by_token = row.reason == FinishReason.STOP and (
            row.detail == _END_OF_TEXT or row.detail.startswith(STOP_TOKEN_PREFIX)
        )
        hidden = ended_by_token and not self.shows_stop_token
        shown, last = (tokens[:-1], tokens[-1:]) if hidden else (tokens, [])
        shown, text = self.take(shown, times)
        if self.matcher is not None and self.matcher.found is not None:
            return shown, text
        for _ in last:
            times.note(self)
        rest = self.detokenizer.flush()
        if self.matcher is not None:
            rest = self._match(self.matcher, rest)
            rest = rest if self.stopped else rest + self.matcher.flush()
        return [*shown, *last], text + rest

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
            self.name,
            tokens,
            text,
            False,
            None,
            None,
            self.num_prompt_tokens,
            self.num_output_tokens,
            0,
            shown,
            prompt,
        )

    def _match(self, matcher: StopMatcher | SpokenStops, text: str) -> str:
        """Return the certain text that the newest token adds; a stop string that completes within
        the first `min_tokens` tokens does not end it."""
        if self.num_output_tokens > self.min_tokens:
            text, self.stopped = matcher.feed(text)
            return text
        return matcher.pass_over(text)


def _trimmed(entry: TokenLogprobs, wanted: int) -> TokenLogprobs:
    """Cut the alternatives to the number that the request wants; other requests may want more."""
    return replace(entry, top_logprobs=entry.top_logprobs[:wanted])
