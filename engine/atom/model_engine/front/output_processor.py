"""Token ids of an engine step to each caller's output: text, the end, and the reason for it.

One call per step for all rows. The state of an open request is in its record (OpenRequest); this
turns a step into outputs and observes their times. It knows neither sockets nor HTTP; called by
StepDelivery from one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from atom.answer_parsing.spoken_text import spoken_text
from atom.client_figures import ClientFigures
from atom.metrics import RequestMetrics
from atom.model_engine.front.answer_text import AnswerText
from atom.model_engine.front.open_request import (
    STOP_TOKEN_PREFIX,
    OpenRequest,
    Reader,
    RequestTimes,
    RequestTokens,
    TokenTimes,
)
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.front.stop_strings import SpokenStops, StopMatcher
from atom.model_engine.request import FinishReason, Request, RequestOutput, TokenLogprobs
from atom.model_engine.transfer_legs import TransferOutcome, TransferResult
from atom.model_engine.wire.engine_protocol import FinishedRow, StreamBody
from atom.model_engine.wire.logprob_rows import LogprobsBody, PromptEntries
from atom.sampling_params import SamplingParams
from atom.tokenizer import Tokenizer

STOP_SEQUENCE = "stop_sequence"


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Hold the outputs of one step. outputs: of each request. abort_ids: requests that a stop
    string ended here; the engine must abort them, and answers with their last row."""

    outputs: list[tuple[OpenRequest, RequestOutput]]
    abort_ids: list[int]


class _NoText:
    """The detokenizer of an engine without a tokenizer."""

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class OutputProcessor:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        metrics: RequestMetrics,
        clients: ClientFigures | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.metrics = metrics
        self.clients = clients or ClientFigures()

    def begin(
        self,
        request: Request,
        name: str,
        group: RequestGroup,
        index: int = 0,
        *,
        shows_text: bool = True,
    ) -> OpenRequest:
        """Make the record of `request`, whose outputs are read as those of `index` in `group`.
        shows_text: False for tokens alone."""
        self.clients.came(request.client_id)
        params = request.params
        stops = params.stop_strings if shows_text else ()
        scores = params.prompt_logprobs
        return OpenRequest(
            number=request.id,
            reader=Reader(name, group, index, request.client_id, request.id),
            text=AnswerText(
                detokenizer=(
                    self._tokenizer.stream(
                        skip_special_tokens=params.skip_special_tokens,
                        shown_ids=params.shown_special_token_ids,
                    )
                    if self._tokenizer and shows_text
                    else _NoText()
                ),
                matcher=_matcher(params) if stops else None,
                min_tokens=params.min_tokens,
                shows_stop_token=params.include_stop_str_in_output,
            ),
            times=RequestTimes(request.arrive_time),
            tokens=RequestTokens(len(request.prompt_token_ids)),
            logprobs=params.logprobs,
            prompt_logprobs=None if scores is None else PromptEntries(scores),
        )

    def process(
        self, body: StreamBody, requests: Mapping[int, OpenRequest], now: float
    ) -> StepOutputs:
        """Turn one step into the outputs of `requests`, which are by number; `now` in the clock of
        their arrive_time. Tokens of other requests are dropped."""
        step = StepOutputs([], [])
        for outcome in body.transfers:
            request = requests.get(outcome.request_id)
            if request is not None:
                self._record_transfer(outcome)
                request.reader.group.note_transfer(outcome)
        if body.prompt_logprobs is not None:
            _keep_prompt_logprobs(body.prompt_logprobs, requests)
        logprobs = _by_request(body.logprobs)
        ends = {row.request_id: row for row in body.finished}
        last_tokens: dict[int, list[int]] = {}
        times = TokenTimes(self.metrics, now)
        for number, tokens in body.rows():
            if number in ends:
                last_tokens[number] = tokens
                continue
            request = requests.get(number)
            if request is None or request.text.stopped:
                continue
            request.times.steps += 1
            shown, text = request.take(tokens, times)
            if request.text.stop_string is not None:
                step.abort_ids.append(number)
            output = request.output(shown, text, logprobs.get(number, ()) if logprobs else ())
            step.outputs.append((request, output))
        pooled = {} if body.pooled is None else body.pooled.by_request()
        for number, row in ends.items():
            request = requests.get(number)
            if request is not None:
                request.times.steps += number in last_tokens
                shown, text = request.take_last(last_tokens.get(number, []), row, times)
                output = request.output(shown, text, logprobs.get(number, ()))
                output = self._finish(request, output, row, now)
                if number in pooled:
                    output = msgspec.structs.replace(output, pooled=pooled[number])
                step.outputs.append((request, output))
        times.record()
        return step

    def _record_transfer(self, outcome: TransferOutcome) -> None:
        waited = (outcome.seconds, outcome.handshake_seconds, outcome.copy_seconds)
        self.metrics.transfers.record(
            (outcome.result.value, outcome.reason),
            outcome.tokens,
            waited if outcome.result is TransferResult.TRANSFERRED else (),
        )

    def _finish(
        self, request: OpenRequest, output: RequestOutput, row: FinishedRow, now: float
    ) -> RequestOutput:
        """Return the last output. A stop string wins over the engine's reason, since the text ends
        there."""
        reason, detail, stop_reason = FinishReason(row.reason), row.detail, _stop_token(row.detail)
        if request.text.stopped:
            reason, detail, stop_reason = FinishReason.STOP, STOP_SEQUENCE, request.text.stop_string
        self.metrics.end_to_end.observe(now - request.times.arrive)
        request.times.queue_seconds = row.queue_seconds
        request.tokens.cached = row.num_cached_tokens
        if row.queue_seconds is not None:
            self.metrics.queue.observe(row.queue_seconds)
            self.clients.began(request.reader.client, row.queue_seconds)
        times = request.times.parts(request.tokens.output)
        if times is not None:
            request.reader.group.times[request.reader.index] = times
        return msgspec.structs.replace(
            output,
            finished=True,
            finish_reason=reason,
            finish_detail=detail,
            stop_reason=stop_reason,
            num_cached_tokens=row.num_cached_tokens,
            error_param=row.param if reason is FinishReason.ERROR else None,
            ticket=row.ticket,
        )


def _matcher(params: SamplingParams) -> StopMatcher | SpokenStops:
    """Make the matcher of an answer's stop strings."""
    found = StopMatcher(params.stop_strings, included=params.include_stop_str_in_output)
    return found if params.reasoning is None else SpokenStops(found, spoken_text(params.reasoning))


def _stop_token(detail: str) -> str | int | None:
    token = detail.removeprefix(STOP_TOKEN_PREFIX)
    return int(token) if token != detail and token.isdigit() else None


def _keep_prompt_logprobs(body: LogprobsBody, requests: Mapping[int, OpenRequest]) -> None:
    rows = body.rows()
    for number in dict.fromkeys(rows.request_ids.tolist()):
        request = requests.get(number)
        mine = rows.where(rows.request_ids == number)
        if mine is not None and request is not None and request.prompt_logprobs is not None:
            request.prompt_logprobs.add(mine)


def _by_request(body: LogprobsBody | None) -> dict[int, list[TokenLogprobs]]:
    found: dict[int, list[TokenLogprobs]] = {}
    if body is not None:
        for request_id, entry in body.rows().entries():
            found.setdefault(request_id, []).append(entry)
    return found
