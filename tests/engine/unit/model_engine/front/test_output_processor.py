from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atom.model_engine.request import FinishReason, Request, RequestOutput, TokenLogprobs
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.model_engine.wire.logprob_rows import LogprobRows, LogprobsBody
from atom.sampling_params import SamplingParams
from atom.tokenizer import Tokenizer
from tests.support.engine_core.front_half import stream_body
from tests.support.engine_core.step_outputs import ShownStep, StepReader
from tests.support.models.byte_tokenizer import TURN_END, write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer(folder)


class Driver:
    """Feeds text to a processor token by token, a second per step."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.processor = StepReader(tokenizer)
        self.now = 100.0

    def add(self, number: int, *stops: str, **params: Any) -> None:
        sampling = SamplingParams(stop_strings=stops, max_tokens=99, **params)
        request = Request(number, [1, 2, 3], sampling, 102, arrive_time=self.now)
        self.processor.add(request, f"name-{number}")

    def step(
        self, rows: list[tuple[int, ...]], finished: tuple[FinishedRow, ...] = ()
    ) -> ShownStep:
        self.now += 1.0
        return self.processor.process(stream_body(rows, finished), self.now)

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def play(
        self, number: int, token_ids: list[int], reason: str, detail: str
    ) -> tuple[list[RequestOutput], list[int]]:
        """All tokens, the last with the end; until an abort is asked for, which is granted."""
        outputs: list[RequestOutput] = []
        for position, token_id in enumerate(token_ids):
            last = position == len(token_ids) - 1
            end = (FinishedRow(number, reason, detail, 2),) if last else ()
            step = self.step([(number, token_id)], end)
            outputs += [output for _, output in step.outputs]
            if step.abort_ids:
                granted = self.step([], (FinishedRow(number, "abort", "aborted", 2),))
                outputs += [output for _, output in granted.outputs]
                return outputs, step.abort_ids
        return outputs, []


@pytest.fixture
def driver(tokenizer: Tokenizer) -> Driver:
    return Driver(tokenizer)


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


def test_text_comes_token_by_token_and_ends_with_the_reason(driver: Driver) -> None:
    driver.add(1)
    token_ids = driver.tokens("hello the 字 world")
    outputs, aborts = driver.play(1, token_ids, "length", "max_tokens")
    assert text_of(outputs) == "hello the 字 world"
    assert aborts == []
    assert [output.finished for output in outputs] == [False] * (len(token_ids) - 1) + [True]
    last = outputs[-1]
    assert (last.request_id, last.finish_reason) == ("name-1", FinishReason.LENGTH)
    assert last.finish_detail == "max_tokens"
    assert (last.num_prompt_tokens, last.num_output_tokens) == (3, len(token_ids))
    assert last.num_cached_tokens == 2
    assert len(driver.processor) == 0


def test_rows_of_several_requests_are_kept_apart(driver: Driver) -> None:
    driver.add(1)
    driver.add(2)
    a, b = driver.tokens("ab")
    step = driver.step([(2, b), (1, a)], (FinishedRow(1, "length", "max_tokens", 0),))
    by_number = {number: output.text for number, output in step.outputs}
    assert by_number == {1: "a", 2: "b"}
    assert len(driver.processor) == 1


def test_several_tokens_of_one_request_in_a_step_are_all_taken(driver: Driver) -> None:
    driver.add(1)
    a, b, c = driver.tokens("abc")
    driver.add(2)
    step = driver.step([(1, a, b), (2, c)])
    shown = [(number, output.text, output.output_tokens) for number, output in step.outputs]
    assert shown == [(1, "ab", [a, b]), (2, "c", [c])]
    step = driver.step([(1, c, a)], (FinishedRow(1, "length", "max_tokens", 0),))
    ((_, last),) = step.outputs
    assert (last.text, last.output_tokens, last.num_output_tokens) == ("ca", [c, a], 4)


def test_a_stop_string_over_token_borders_ends_the_text_and_the_request(driver: Driver) -> None:
    driver.add(1, "wait, stop!")
    outputs, aborts = driver.play(1, driver.tokens("go on, wait, stop! more"), "length", "x")
    assert text_of(outputs) == "go on, "
    assert aborts == [1]
    assert [output.finished for output in outputs].count(True) == 1
    last = outputs[-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.finish_detail == "stop_sequence"
    assert last.num_cached_tokens == 2
    assert last.num_output_tokens == len(driver.tokens("go on, wait, stop!"))


def test_tokens_after_a_stop_string_are_dropped(driver: Driver) -> None:
    driver.add(1, "b")
    a, b, c = driver.tokens("abc")
    assert driver.step([(1, a)]).abort_ids == []
    assert driver.step([(1, b)]).abort_ids == [1]
    late = driver.step([(1, c)])
    assert (late.outputs, late.abort_ids) == ([], [])
    end = driver.step([(1, c)], (FinishedRow(1, "length", "max_tokens", 0),))
    ((_, last),) = end.outputs
    assert (last.text, last.output_tokens) == ("", [])
    assert (last.finish_reason, last.num_output_tokens) == (FinishReason.STOP, 2)


def test_a_stop_string_in_the_last_token_wins_over_the_length(driver: Driver) -> None:
    driver.add(1, "lo")
    outputs, aborts = driver.play(1, driver.tokens("xx lo"), "length", "max_tokens")
    assert text_of(outputs) == "xx "
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert aborts == []  # the engine has ended it already


def test_an_error_behind_a_stop_string_is_nobodys(driver: Driver) -> None:
    driver.add(1, "b")
    a, b, c = driver.tokens("abc")
    driver.step([(1, a)])
    driver.step([(1, b)])
    error = FinishedRow(1, "error", "no token is left", 0, param="guided_regex")
    ((_, last),) = driver.step([(1, c)], (error,)).outputs
    assert (last.finish_reason, last.finish_detail) == (FinishReason.STOP, "stop_sequence")
    assert last.refusal() is None


def test_the_token_at_fault_for_an_error_completes_no_stop_string(driver: Driver) -> None:
    driver.add(1, "b")
    a, b = driver.tokens("ab")
    driver.step([(1, a)])
    error = FinishedRow(1, "error", "no token is left", 0, param="guided_regex")
    ((_, last),) = driver.step([(1, b)], (error,)).outputs
    assert last.finish_reason is FinishReason.ERROR
    assert str(last.refusal()) == "no token is left"


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(driver: Driver) -> None:
    driver.add(1, "stopped")
    outputs, _ = driver.play(1, driver.tokens("now stop"), "length", "max_tokens")
    assert text_of(outputs) == "now stop"
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_an_incomplete_character_is_shown_at_the_end_only(driver: Driver) -> None:
    driver.add(1)
    token_ids = driver.tokens("a€")[:-1]
    outputs, _ = driver.play(1, token_ids, "length", "max_tokens")
    assert [output.text for output in outputs] == ["a", "", "\ufffd"]


@pytest.mark.parametrize(("ending", "detail"), [("c", "stop_42"), ("c", "eos"), (TURN_END, "eos")])
def test_the_token_that_ends_generation_is_counted_but_not_shown(
    driver: Driver, ending: str, detail: str
) -> None:
    driver.add(1)
    outputs, _ = driver.play(1, driver.tokens(f"ab{ending}"), "stop", detail)
    assert text_of(outputs) == "ab"
    assert outputs[-1].num_output_tokens == 3
    assert (outputs[-1].finish_reason, outputs[-1].finish_detail) == (FinishReason.STOP, detail)


def test_tokens_of_unknown_or_discarded_requests_are_ignored(driver: Driver) -> None:
    driver.add(1)
    driver.processor.discard(1)
    driver.processor.discard(1)
    step = driver.step([(1, 5), (99, 5)], (FinishedRow(1, "abort", "aborted", 0),))
    assert (step.outputs, step.abort_ids) == ([], [])
    assert driver.processor.metrics.finished == {"abort": 1}


def test_latencies_are_recorded_per_token(driver: Driver) -> None:
    driver.add(1)
    driver.play(1, driver.tokens("abc"), "length", "max_tokens")
    seconds = driver.processor.metrics
    assert (sum(seconds.time_to_first_token.counts), seconds.time_to_first_token.total) == (
        1,
        1.0,
    )
    assert (sum(seconds.inter_token.counts), seconds.inter_token.total) == (2, 2.0)
    assert (sum(seconds.end_to_end.counts), seconds.end_to_end.total) == (1, 3.0)
    assert seconds.finished == {"length": 1}


def test_without_a_tokenizer_tokens_come_without_text() -> None:
    processor = StepReader(None)
    processor.add(Request(1, [1], SamplingParams(), 9, arrive_time=0.0), "one")
    ((_, output),) = processor.process(stream_body([(1, 5)]), 1.0).outputs
    assert (output.text, output.output_tokens) == ("", [5])


def logprob_rows(*rows: tuple[int, int]) -> LogprobRows:
    """(request, token) with two alternatives each; the token's own log-probability is -token."""
    return LogprobRows(
        request_ids=np.array([row[0] for row in rows], dtype=np.int64),
        token_ids=np.array([[row[1], 7, 8] for row in rows], dtype=np.int32),
        logprobs=np.array([[-row[1], -0.5, -1.5] for row in rows], dtype=np.float32),
        ranks=np.array([3 for _ in rows], dtype=np.int32),
    )


def told(token: int, *top: tuple[int, float]) -> TokenLogprobs:
    return TokenLogprobs(token, -float(token), 3, top)


def test_each_request_is_told_as_much_as_it_asked_for(driver: Driver) -> None:
    driver.add(1, logprobs=2)
    driver.add(2, logprobs=0)
    driver.add(3)
    body = stream_body(
        [(1, 10), (2, 20), (3, 30)], [FinishedRow(2, "length", "max_tokens", 0)],
        logprobs=logprob_rows((1, 10), (2, 20), (9, 90)),
    )  # fmt: skip
    outputs = dict(driver.processor.process(body, 101.0).outputs)
    assert outputs[1].logprobs == [told(10, (7, -0.5), (8, -1.5))]
    assert outputs[2].logprobs == [told(20)]
    assert outputs[3].logprobs is None


def test_the_prompts_log_probabilities_come_with_the_first_output_and_once(
    driver: Driver,
) -> None:
    driver.add(1, prompt_logprobs=1)
    driver.add(2)
    early = stream_body([(2, 5)], prompt_logprobs=logprob_rows((1, 2)))
    assert dict(driver.processor.process(early, 101.0).outputs)[2].prompt_logprobs is None
    late = stream_body([(1, 9)], prompt_logprobs=logprob_rows((1, 3)))
    ((_, output),) = driver.processor.process(late, 102.0).outputs
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 3
    assert list(output.prompt_logprobs) == [None, told(2, (7, -0.5)), told(3, (7, -0.5))]
    ((_, output),) = driver.processor.process(stream_body([(1, 9)]), 103.0).outputs
    assert output.prompt_logprobs is None


def test_tokens_behind_a_stop_string_are_told_of_no_more(driver: Driver) -> None:
    first, second = driver.tokens("and")[0], driver.tokens("!")[0]
    driver.add(1, "and", logprobs=0)
    body = stream_body([(1, first)], logprobs=logprob_rows((1, first)))
    step = driver.processor.process(body, 101.0)
    assert step.abort_ids == [1]
    assert step.outputs[0][1].logprobs == [told(first)]
    behind = stream_body(
        [(1, second)], [FinishedRow(1, "abort", "aborted", 0)],
        logprobs=logprob_rows((1, second)),
    )  # fmt: skip
    ((_, last),) = driver.processor.process(behind, 102.0).outputs
    assert (last.output_tokens, last.logprobs) == ([], [])


def test_a_stop_string_among_the_fewest_tokens_ends_nothing(driver: Driver) -> None:
    tokens = driver.tokens("stop now, stop")
    early = driver.tokens("stop now,")
    driver.add(1, "stop", min_tokens=len(early))
    outputs, abort_ids = driver.play(1, tokens, "length", "max_tokens")
    assert text_of(outputs) == "stop now, "
    assert outputs[-1].finish_detail == "stop_sequence"
    assert len(abort_ids) <= 1


def test_the_first_token_after_the_fewest_may_complete_a_stop_string(driver: Driver) -> None:
    tokens = driver.tokens("a stop b")
    complete = next(n for n in range(len(tokens)) if "stop" in driver.tokenizer.decode(tokens[:n]))
    for fewest, expected in ((complete - 1, "a "), (complete, "a stop b")):
        request = 10 + fewest
        driver.add(request, "stop", min_tokens=fewest)
        outputs, _ = driver.play(request, tokens, "length", "max_tokens")
        assert text_of(outputs) == expected


def test_a_stop_string_may_begin_among_the_fewest_tokens_and_end_behind_them(
    driver: Driver,
) -> None:
    tokens = driver.tokens("a stop b")
    complete = next(n for n in range(len(tokens)) if "stop" in driver.tokenizer.decode(tokens[:n]))
    assert complete > 2, "the stop string has several tokens"
    driver.add(1, "stop", min_tokens=complete - 2)
    outputs, abort_ids = driver.play(1, tokens, "length", "max_tokens")
    assert text_of(outputs) == "a "
    assert abort_ids == [1]


def test_malformed_log_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="do not hold 1 rows"):
        LogprobsBody(2, b"\0" * 8, b"\0" * 4, b"\0" * 8, b"\0" * 4)
