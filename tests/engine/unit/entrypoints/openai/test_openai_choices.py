"""Several answers to a prompt, and prompts that are shown before their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from atom.config import Config
from atom.entrypoints.openai.choices import Choice, render
from atom.entrypoints.openai.logprobs import PlacedLogprobs
from atom.errors import RequestError
from atom.metrics import RequestMetrics
from atom.model_engine.front.input_processor import params_of_each_answer
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.output_processor import OutputProcessor
from atom.model_engine.front.request_stream import ReaderLimits, RequestStream
from atom.model_engine.request import FinishReason, Request, RequestOutput, TokenLogprobs
from atom.sampling_params import SamplingParams
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app
from tests.support.waiting import eventually

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[AppRig]:
    async with serve_app(config, cached_tokens=2) as rig:
        yield rig
        assert rig.engine.open_requests == 0


# ---- n ------------------------------------------------------------------------------------------


async def test_n_answers_are_n_requests_with_seeds_that_follow_each_other(rig: AppRig) -> None:
    response = await rig.post(TEXT, prompt="abcd", n=3, seed=10, max_tokens=2)
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2]
    assert [request.params.seed for request in rig.core.added] == [10, 11, 12]
    assert [request.params.n for request in rig.core.added] == [1, 1, 1]


async def test_a_prompt_counts_once_however_many_answers_it_has(rig: AppRig) -> None:
    response = await rig.post(TEXT, prompt=["abcd", "ab"], n=3, max_tokens=2)
    assert response.json()["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 12,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_choices_are_numbered_prompt_by_prompt(rig: AppRig) -> None:
    response = await rig.post(TEXT, prompt=["ab", "cd"], n=2, max_tokens=2)
    texts = [choice["text"] for choice in response.json()["choices"]]
    assert texts == ["ab", "ab", "cd", "cd"]


async def test_streamed_answers_carry_their_index_and_end_each(rig: AppRig) -> None:
    fields = {"n": 2, "max_tokens": 12, "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": "hi"}]
    events = await rig.events("/v1/chat/completions", messages=messages, **fields)
    *chunks, last, done = events
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(2):
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "user\nhi\nas"
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]
    assert last["usage"]["completion_tokens"] == 24
    assert last["usage"]["prompt_tokens"] == len(rig.core.added[0].prompt_token_ids)


async def test_a_client_that_leaves_takes_all_its_answers_along(rig: AppRig) -> None:
    rig.core.held = True
    asking = asyncio.create_task(rig.post(TEXT, prompt="ab", n=4))
    await eventually(lambda: len(rig.core.added) == 4, "the requests reached the engine")
    asking.cancel()
    await eventually(lambda: sorted(rig.core.aborted) == [1, 2, 3, 4], "all were aborted")


@pytest.mark.parametrize("seed", [None, 5, 2**63 - 2])
def test_seeds_of_answers_stay_within_64_bits(seed: int | None) -> None:
    seeds = [params.seed for params in params_of_each_answer(SamplingParams(n=4, seed=seed))]
    assert seeds[0] == seed
    if seed is None:
        assert seeds == [None] * 4
    else:
        assert len(set(seeds)) == 4
        assert seeds[3] == (8 if seed == 5 else -(2**63) + 1)


# ---- echo ---------------------------------------------------------------------------------------


async def test_the_prompt_comes_back_before_each_answer(rig: AppRig) -> None:
    response = await rig.post(TEXT, prompt=["ab", "cd"], n=2, echo=True, max_tokens=3)
    texts = [choice["text"] for choice in response.json()["choices"]]
    assert texts == ["ababa", "ababa", "cdcdc", "cdcdc"]


async def test_token_ids_come_back_as_text(rig: AppRig) -> None:
    tokens = (await rig.post("/tokenize", prompt="hello the world")).json()["tokens"]
    response = await rig.post(TEXT, prompt=tokens, echo=True, max_tokens=len(tokens))
    assert response.json()["choices"][0]["text"] == "hello the world" * 2


async def test_a_prompt_alone_comes_back_when_nothing_is_to_be_generated(rig: AppRig) -> None:
    body = (await rig.post(TEXT, prompt="abcd", echo=True, max_tokens=0)).json()
    assert body["choices"][0]["text"] == "abcd"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["total_tokens"] == 4


async def test_an_echo_is_streamed_once(rig: AppRig) -> None:
    events = await rig.events(TEXT, prompt=["ab", "cd"], echo=True, max_tokens=3)
    texts = {0: "", 1: ""}
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "ababa", 1: "cdcdc"}


# ---- readers that lag ---------------------------------------------------------------------------


def output(text: str, *, finished: bool = False) -> RequestOutput:
    reason = FinishReason.LENGTH if finished else None
    return RequestOutput("r", [1], text, finished, reason, None, 1, 1, 0)


class Lagging:
    """One request, whose reader is the test."""

    def __init__(self, limits: ReaderLimits) -> None:
        self.now = 0.0
        self.contended = False
        self.aborted: list[int] = []
        self.requests = OpenRequests(
            OutputProcessor(None, RequestMetrics()),
            self.aborted.extend,
            reader_limits=limits,
            is_contended=lambda: self.contended,
            clock=lambda: self.now,
        )
        request = Request(1, [1], SamplingParams(), 9, arrive_time=0.0)
        self.group = self.requests.open(["r"], [request])
        self._request = self.requests.by_number[1]

    def give(self, text: str, *, finished: bool = False) -> None:
        self.requests.deliver([(self._request, output(text, finished=finished))])


async def test_a_reader_that_lags_for_too_long_has_its_request_aborted() -> None:
    rig = Lagging(ReaderLimits(seconds=5))
    stream = RequestStream(rig.group)
    rig.give("a")
    rig.now = 4.9
    rig.give("b")
    assert (await anext(stream)).text == "ab"  # taken: the time starts anew
    rig.give("c")
    rig.now = 20.0
    assert rig.aborted == []
    rig.give("d")
    assert rig.aborted == [1]
    assert (await anext(stream)).text == "c"
    with pytest.raises(RequestError, match="not read as fast") as slow:
        await anext(stream)
    assert slow.value.code == "slow_reader"


async def test_while_others_wait_a_reader_may_lag_for_less_time() -> None:
    rig = Lagging(ReaderLimits(seconds=60, contended_seconds=5))
    rig.give("a")
    rig.now = 30.0
    rig.give("b")
    assert rig.aborted == [], "its place is nobody else's"
    rig.contended = True
    rig.group.take()
    rig.give("c")
    rig.now = 34.9
    rig.give("d")
    assert rig.aborted == [], "it has read since"
    rig.now = 35.1
    rig.give("e")
    assert rig.aborted == [1]


async def test_a_reader_that_lags_by_too_much_has_its_request_aborted() -> None:
    rig = Lagging(ReaderLimits(tokens=3))
    for entry in "abc":
        rig.give(entry)
    assert rig.aborted == []
    rig.give("d")
    assert rig.aborted == [1]


async def test_what_is_taken_at_once_counts_as_read() -> None:
    rig = Lagging(ReaderLimits(tokens=1))
    for entry in "abc":
        rig.give(entry)
        ((_, taken),) = rig.group.take()
        assert taken.text == entry
    assert (rig.group.take(), rig.aborted) == ([], [])


async def test_an_answer_that_is_complete_waits_for_its_reader() -> None:
    rig = Lagging(ReaderLimits(seconds=5))
    rig.give("a")
    rig.now = 100.0
    rig.give("b", finished=True)
    assert [item.text async for item in RequestStream(rig.group)] == ["ab"]


@pytest.mark.parametrize("tokens", [10, 5000])
async def test_what_tells_of_many_tokens_is_written_where_nobody_waits(tokens: int) -> None:
    entry = PlacedLogprobs(1, 0, TokenLogprobs(1, -0.5, 1))
    written_on: list[threading.Thread] = []

    def make() -> bytes:
        written_on.append(threading.current_thread())
        return b"{}"

    assert await render([Choice(logprobs=[entry] * tokens)], make) == b"{}"
    assert (written_on == [threading.current_thread()]) == (tokens == 10)
