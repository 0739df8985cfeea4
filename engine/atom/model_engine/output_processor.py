"""Token ids of an engine step to what each caller sees: text, the end, and the reason for it.

One call per step for all rows. Holds the text side of every open request: the half character, the
text that may become a stop string, the counts for usage, the times for metrics. It knows neither
sockets nor HTTP; LLMEngine and AsyncLLMEngine call it from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.metrics import RequestMetrics
from atom.model_engine.engine_protocol import FinishedRow, StreamBody
from atom.model_engine.request import FinishReason, Request, RequestOutput
from atom.model_engine.stop_strings import StopMatcher
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
    """An open request's state. stopped: a stop string ended the text, the engine does not know
    yet: its further tokens are nobody's."""

    name: str
    stream: TokenStream
    matcher: StopMatcher | None
    num_prompt_tokens: int
    arrive_time: float
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
        stops = request.params.stop_strings
        self._answers[request.id] = _Answer(
            name=name,
            stream=self._tokenizer.stream() if self._tokenizer else _NoText(),
            matcher=StopMatcher(stops) if stops else None,
            num_prompt_tokens=len(request.prompt_token_ids),
            arrive_time=request.arrive_time,
        )

    def discard(self, request_id: int) -> None:
        """Forget a request whose caller is gone; its later tokens are dropped."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._record_end(answer, FinishReason.ABORT)

    def process(self, body: StreamBody, now: float) -> StepOutputs:
        """Everything one step gave; `now` in the clock of the requests' arrive_time."""
        step = StepOutputs([], [])
        ends = {row.request_id: row for row in body.finished}
        last_tokens: dict[int, list[int]] = {}
        request_ids, token_ids = body.rows()
        for request_id, token_id in zip(request_ids.tolist(), token_ids.tolist(), strict=True):
            if request_id in ends:
                last_tokens.setdefault(request_id, []).append(token_id)
                continue
            answer = self._answers.get(request_id)
            if answer is not None and not answer.stopped:
                self._add_token(step, request_id, answer, token_id, now)
        for row in body.finished:
            ended = self._answers.pop(row.request_id, None)
            if ended is not None:
                tokens = last_tokens.get(row.request_id, [])
                step.outputs.append((row.request_id, self._finish(ended, tokens, row, now)))
        return step

    def _add_token(
        self, step: StepOutputs, request_id: int, answer: _Answer, token_id: int, now: float
    ) -> None:
        self._record_token(answer, now)
        text = answer.stream.push(token_id)
        if answer.matcher is not None:
            text, answer.stopped = answer.matcher.feed(text)
            if answer.stopped:
                step.abort_ids.append(request_id)
        step.outputs.append((request_id, _output(answer, [token_id], text)))

    def _finish(
        self, answer: _Answer, tokens: list[int], row: FinishedRow, now: float
    ) -> RequestOutput:
        """The last output. A stop string wins over the engine's reason: the text ends there."""
        text = ""
        if answer.stopped:
            tokens = []
        else:
            for _ in tokens:
                self._record_token(answer, now)
            text, answer.stopped = _last_text(answer, tokens, row)
        reason, detail, stop_reason = FinishReason(row.reason), row.detail, _stop_token(row.detail)
        if answer.stopped and answer.matcher is not None:
            reason, detail, stop_reason = FinishReason.STOP, STOP_SEQUENCE, answer.matcher.found
        self._metrics.end_to_end.observe(now - answer.arrive_time)
        if row.queue_seconds is not None:
            self._metrics.queue.observe(row.queue_seconds)
        self._record_end(answer, reason)
        return RequestOutput(
            request_id=answer.name,
            output_tokens=tokens,
            text=text,
            finished=True,
            finish_reason=reason,
            finish_detail=detail,
            stop_reason=stop_reason,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_output_tokens=answer.num_output_tokens,
            num_cached_tokens=row.num_cached_tokens,
        )

    def _record_end(self, answer: _Answer, reason: FinishReason) -> None:
        self._metrics.record_end(reason, answer.num_prompt_tokens, answer.num_output_tokens)

    def _record_token(self, answer: _Answer, now: float) -> None:
        answer.num_output_tokens += 1
        if answer.last_token_time is None:
            self._metrics.time_to_first_token.observe(now - answer.arrive_time)
        else:
            self._metrics.inter_token.observe(now - answer.last_token_time)
        answer.last_token_time = now


def _stop_token(detail: str) -> str | int | None:
    token = detail.removeprefix(_STOP_TOKEN_PREFIX)
    return int(token) if token != detail and token.isdigit() else None


def _last_text(answer: _Answer, tokens: list[int], row: FinishedRow) -> tuple[str, bool]:
    """The text that the last tokens complete, and whether a stop string cut it.

    The token that ended generation by its id is not part of the text, special token or not.
    """
    ended_by_token = row.reason == FinishReason.STOP and (
        row.detail == _END_OF_TEXT or row.detail.startswith(_STOP_TOKEN_PREFIX)
    )
    shown = tokens[:-1] if ended_by_token else tokens
    text = "".join(map(answer.stream.push, shown)) + answer.stream.flush()
    if answer.matcher is None:
        return text, False
    text, matched = answer.matcher.feed(text)
    return (text, True) if matched else (text + answer.matcher.flush(), False)


def _output(answer: _Answer, tokens: list[int], text: str) -> RequestOutput:
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
    )
