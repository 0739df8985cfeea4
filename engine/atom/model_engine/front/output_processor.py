"""Token ids of an engine step to what each caller sees: text, the end, and the reason for it.

One call per step for all rows. Holds the text side of every open request: the half character, the
text that may become a stop string, the counts for usage, the times for metrics. It knows neither
sockets nor HTTP; LLMEngine and AsyncLLMEngine call it from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from atom.metrics import RequestMetrics
from atom.model_engine.front.stop_strings import StopMatcher
from atom.model_engine.request import FinishReason, Request, RequestOutput, TokenLogprobs
from atom.model_engine.wire.engine_protocol import FinishedRow, StreamBody
from atom.model_engine.wire.logprob_rows import LogprobsBody, PromptEntries
from atom.sampling_params import SamplingParams
from atom.tokenizer import Tokenizer, TokenStream

STOP_SEQUENCE = "stop_sequence"
_END_OF_TEXT = "eos"
_STOP_TOKEN_PREFIX = "stop_"


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """outputs: what each request got, by the engine's id. abort_ids: requests that a stop string
    ended here; the engine must be told, and answers with their last row."""

    outputs: list[tuple[int, RequestOutput]]
    abort_ids: list[int]


class _NoText:
    """The stream of an engine without a tokenizer."""

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass(slots=True)
class _Answer:
    """An open request's state. plain: tokens and text are all that its outputs have. stopped: a
    stop string ended the text, the engine does not know yet: its further tokens are nobody's.
    prompt_logprobs: what has come of them, until they are shown; None when they were not asked
    for."""

    name: str
    stream: TokenStream
    matcher: StopMatcher | None
    params: SamplingParams
    plain: bool
    num_prompt_tokens: int
    arrive_time: float
    prompt_logprobs: PromptEntries | None
    num_output_tokens: int = 0
    last_token_time: float | None = None
    stopped: bool = False


class OutputProcessor:
    def __init__(self, tokenizer: Tokenizer | None, metrics: RequestMetrics) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._answers: dict[int, _Answer] = {}

    def __len__(self) -> int:
        """How many requests are open."""
        return len(self._answers)

    def add(self, request: Request, name: str) -> None:
        """Expect tokens of `request`; its outputs carry `name`."""
        params = request.params
        stops, scores = params.stop_strings, params.prompt_logprobs
        self._answers[request.id] = _Answer(
            name=name,
            stream=self._tokenizer.stream() if self._tokenizer else _NoText(),
            matcher=StopMatcher(stops) if stops else None,
            params=params,
            plain=params.logprobs is None and params.prompt_logprobs is None,
            num_prompt_tokens=len(request.prompt_token_ids),
            arrive_time=request.arrive_time,
            prompt_logprobs=None if scores is None else PromptEntries(scores),
        )

    def discard(self, request_id: int) -> None:
        """Forget a request whose caller is gone; its later tokens are dropped."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._record_end(answer, FinishReason.ABORT)

    def process(self, body: StreamBody, now: float) -> StepOutputs:
        """Everything one step gave; `now` in the clock of the requests' arrive_time."""
        step = StepOutputs([], [])
        if body.prompt_logprobs is not None:
            self._take_prompt_logprobs(body.prompt_logprobs)
        logprobs = _by_request(body.logprobs)
        ends = {row.request_id: row for row in body.finished}
        last_tokens: dict[int, list[int]] = {}
        times = _TokenTimes(self._metrics, now)
        for request_id, token_id, more in body.rows():
            if request_id in ends:
                last_tokens[request_id] = [token_id, *more]
                continue
            answer = self._answers.get(request_id)
            if answer is None or answer.stopped:
                continue
            matcher = answer.matcher
            if more:
                tokens, text = _take_tokens(answer, [token_id, *more], times)
                if matcher is not None and matcher.found is not None:
                    step.abort_ids.append(request_id)
            else:  # nearly always: what `_take_tokens` does of one
                tokens = [token_id]
                times.note(answer)
                text = answer.stream.push(token_id)
                if matcher is not None:
                    text, answer.stopped = _match(answer, matcher, text)
                    if answer.stopped:
                        step.abort_ids.append(request_id)
            if answer.plain:
                output = _plain_output(answer, tokens, text)
            else:
                output = _output(answer, tokens, text, logprobs.get(request_id, []))
            step.outputs.append((request_id, output))
        for row in body.finished:
            ended = self._answers.pop(row.request_id, None)
            if ended is not None:
                tokens = [] if ended.stopped else last_tokens.get(row.request_id, [])
                output = self._finish(ended, tokens, row, logprobs.get(row.request_id, []), times)
                step.outputs.append((row.request_id, output))
        times.record()
        return step

    def _take_prompt_logprobs(self, body: LogprobsBody) -> None:
        rows = body.rows()
        for request_id in dict.fromkeys(rows.request_ids.tolist()):
            answer = self._answers.get(request_id)
            mine = rows.where(rows.request_ids == request_id)
            if mine is not None and answer is not None and answer.prompt_logprobs is not None:
                answer.prompt_logprobs.add(mine)

    def _finish(
        self,
        answer: _Answer,
        tokens: list[int],
        row: FinishedRow,
        entries: list[TokenLogprobs],
        times: _TokenTimes,
    ) -> RequestOutput:
        """The last output. A stop string wins over the engine's reason, since the text ends there;
        an error wins over one that the very token at fault completes."""
        text = ""
        if not answer.stopped:
            tokens, text = _take_last_tokens(answer, tokens, times, row)
        reason, detail, stop_reason = FinishReason(row.reason), row.detail, _stop_token(row.detail)
        if answer.stopped and answer.matcher is not None:
            reason, detail, stop_reason = FinishReason.STOP, STOP_SEQUENCE, answer.matcher.found
        self._metrics.end_to_end.observe(times.now - answer.arrive_time)
        if row.queue_seconds is not None:
            self._metrics.queue.observe(row.queue_seconds)
        self._record_end(answer, reason)
        return msgspec.structs.replace(
            _output(answer, tokens, text, entries),
            finished=True,
            finish_reason=reason,
            finish_detail=detail,
            stop_reason=stop_reason,
            num_cached_tokens=row.num_cached_tokens,
            error_param=row.param if reason is FinishReason.ERROR else None,
        )

    def _record_end(self, answer: _Answer, reason: FinishReason) -> None:
        self._metrics.record_end(reason, answer.num_prompt_tokens, answer.num_output_tokens)


class _TokenTimes:
    """The times of a step's tokens. Nearly all of them follow tokens of one and the same step, so
    each such step is observed once."""

    __slots__ = ("_counts", "_metrics", "now")

    def __init__(self, metrics: RequestMetrics, now: float) -> None:
        self._metrics = metrics
        self.now = now
        self._counts: dict[float, int] = {}  # when the tokens before came → how many

    def note(self, answer: _Answer) -> None:
        """One more token of it."""
        answer.num_output_tokens += 1
        before = answer.last_token_time
        answer.last_token_time = self.now
        if before is None:
            self._metrics.time_to_first_token.observe(self.now - answer.arrive_time)
        else:
            self._counts[before] = self._counts.get(before, 0) + 1

    def record(self) -> None:
        for before, count in self._counts.items():
            self._metrics.inter_token.observe(self.now - before, count)


def _stop_token(detail: str) -> str | int | None:
    token = detail.removeprefix(_STOP_TOKEN_PREFIX)
    return int(token) if token != detail and token.isdigit() else None


def _take_tokens(answer: _Answer, tokens: list[int], times: _TokenTimes) -> tuple[list[int], str]:
    """Count an answer's next tokens: those up to a stop string, if one ends the text with them, and
    the text that is then certain."""
    text = ""
    for count, token_id in enumerate(tokens, start=1):
        times.note(answer)
        piece = answer.stream.push(token_id)
        if answer.matcher is not None:
            piece, answer.stopped = _match(answer, answer.matcher, piece)
        text += piece
        if answer.stopped:
            return tokens[:count], text
    return tokens, text


def _take_last_tokens(
    answer: _Answer, tokens: list[int], times: _TokenTimes, row: FinishedRow
) -> tuple[list[int], str]:
    """Count the tokens that the engine ended an answer with, as far as they are shown, and complete
    its text.

    The token that ended generation by its id is not part of the text, special token or not."""
    if row.reason == FinishReason.ERROR:
        for _ in tokens:
            times.note(answer)
        return tokens, ""
    ended_by_token = row.reason == FinishReason.STOP and (
        row.detail == _END_OF_TEXT or row.detail.startswith(_STOP_TOKEN_PREFIX)
    )
    shown, last = (tokens[:-1], tokens[-1:]) if ended_by_token else (tokens, [])
    shown, text = _take_tokens(answer, shown, times)
    if answer.stopped:
        return shown, text
    for _ in last:
        times.note(answer)
    rest = answer.stream.flush()
    if answer.matcher is not None:
        rest, answer.stopped = _match(answer, answer.matcher, rest)
        rest = rest if answer.stopped else rest + answer.matcher.flush()
    return [*shown, *last], text + rest


def _match(answer: _Answer, matcher: StopMatcher, text: str) -> tuple[str, bool]:
    """The text that is certain, of what the newest token adds, and whether a stop string ends it:
    none does that is complete among the fewest tokens."""
    if answer.num_output_tokens > answer.params.min_tokens:
        return matcher.feed(text)
    return matcher.pass_over(text), False


def _trimmed(entry: TokenLogprobs, wanted: int) -> TokenLogprobs:
    """With as many alternatives as its request wants; others of its step may want more."""
    return replace(entry, top_logprobs=entry.top_logprobs[:wanted])


def _by_request(body: LogprobsBody | None) -> dict[int, list[TokenLogprobs]]:
    found: dict[int, list[TokenLogprobs]] = {}
    if body is not None:
        for request_id, entry in body.rows().entries():
            found.setdefault(request_id, []).append(entry)
    return found


def _plain_output(answer: _Answer, tokens: list[int], text: str) -> RequestOutput:
    """What nearly every token is. (By position, which is the cheapest way to make one.)"""
    return RequestOutput(
        answer.name,
        tokens,
        text,
        False,
        None,
        None,
        answer.num_prompt_tokens,
        answer.num_output_tokens,
        0,
    )


def _output(
    answer: _Answer, tokens: list[int], text: str, entries: list[TokenLogprobs]
) -> RequestOutput:
    """What a step adds; the prompt's log-probabilities come with whatever is shown first. entries:
    of the tokens, and perhaps of some behind them that are not shown."""
    wanted = answer.params.logprobs
    logprobs = None
    if wanted is not None:
        logprobs = [_trimmed(entry, wanted) for entry in entries[: len(tokens)]]
    prompt_logprobs, answer.prompt_logprobs = answer.prompt_logprobs, None
    return RequestOutput(
        request_id=answer.name,
        output_tokens=tokens,
        text=text,
        finished=False,
        finish_reason=None,
        finish_detail=None,
        num_prompt_tokens=answer.num_prompt_tokens,
        num_output_tokens=answer.num_output_tokens,
        num_cached_tokens=0,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
