from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atom.config import Config
from atom.errors import EngineDeadError, RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.front.request_stream import RequestStream
from atom.model_engine.request import FinishReason, RequestOutput
from atom.model_engine.wire.core_port import CoreResumed, CoreStalled
from atom.model_engine.wire.engine_protocol import FinishedRow, ProgressBody, StreamBody
from atom.sampling_params import SamplingParams
from atom.tokenizer import Tokenizer
from tests.support.engine_core.front_half import (
    EchoCore,
    build_test_config,
    rank_stats,
    stream_body,
    write_model_folder,
)
from tests.support.waiting import HANG_SECONDS, eventually, within


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


class Rig:
    """An engine on an EchoCore."""

    def __init__(self, config: Config, **core_options: bool) -> None:
        self.engine = AsyncLLMEngine(
            config, core_factory=lambda c, on_event: self._make(c, on_event, core_options)
        )

    def _make(self, config: Config, on_event: object, options: dict[str, bool]) -> EchoCore:
        self.core = EchoCore(config, on_event, **options)  # type: ignore[arg-type]
        return self.core


@pytest.fixture
async def rig(config: Config) -> AsyncIterator[Rig]:
    rig = Rig(config)
    await rig.engine.start()
    await rig.engine.wait_ready()
    yield rig
    await rig.engine.shutdown()


async def hops() -> None:
    """Lets everything that is scheduled on the loop run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def read_all(stream: RequestStream) -> list[RequestOutput]:
    """To the end; a stream without one fails the test."""

    async def outputs() -> list[RequestOutput]:
        return [output async for output in stream]

    return await within(outputs(), "the stream has ended")


async def test_an_answer_streams_to_its_end(rig: Rig) -> None:
    params = SamplingParams(max_tokens=4)
    outputs = [output async for output in rig.engine.generate("abcd", params, "mine")]
    assert "".join(output.text for output in outputs) == "abcd"
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert {output.request_id for output in outputs} == {"mine"}
    assert rig.engine.open_requests == 0
    assert rig.core.aborted == []


async def test_a_stop_string_aborts_the_rest_in_the_engine(rig: Rig) -> None:
    rig.core.held = True
    params = SamplingParams(max_tokens=40, stop_strings=("cd",))
    async with await rig.engine.add_request("abcdef", params) as stream:
        for _ in range(5):
            rig.core.step()
        await eventually(lambda: rig.core.aborted == [1], "the engine was told of the stop string")
        outputs = await read_all(stream)
    assert "".join(output.text for output in outputs) == "ab"
    assert outputs[-1].finish_detail == "stop_sequence"
    assert rig.core.aborted == [1]


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", [1.5]])
async def test_what_is_no_prompt_is_refused(rig: Rig, prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt must be a text"):
        await rig.engine.add_request(prompt, SamplingParams())
    assert rig.engine.open_requests == 0


async def test_a_reader_that_leaves_aborts_its_request(rig: Rig) -> None:
    rig.core.held = True
    async with await rig.engine.add_request("abcd", SamplingParams()) as stream:
        rig.core.step()
        assert (await anext(stream)).text == "a"
    assert rig.core.aborted == [1]
    assert rig.engine.open_requests == 0
    rig.core.step()
    await hops()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_the_generator_aborts_its_request(rig: Rig) -> None:
    rig.core.held = True
    outputs = rig.engine.generate("abcd", SamplingParams())
    first = asyncio.create_task(anext(outputs))
    await hops()
    rig.core.step()
    assert (await first).text == "a"
    await outputs.aclose()  # type: ignore[attr-defined]
    assert rig.core.aborted == [1]


async def test_abort_by_name_ends_the_stream(rig: Rig) -> None:
    rig.core.held = True
    stream = await rig.engine.add_request("abcd", SamplingParams(), request_id="mine")
    await rig.engine.abort("someone else's")
    await rig.engine.abort("mine")
    with pytest.raises(RequestError, match="aborted"):
        await read_all(stream)
    assert rig.core.aborted == [1]


async def test_what_a_slow_reader_missed_comes_as_one_output(rig: Rig) -> None:
    stream = await rig.engine.add_request("abcd", SamplingParams(max_tokens=12))
    await hops()
    (output,) = await read_all(stream)
    assert output.text == "abcdabcdabcd"
    assert len(output.output_tokens) == output.num_output_tokens == 12
    assert output.finished


async def test_readers_that_wait_are_woken(rig: Rig) -> None:
    rig.core.held = True
    streams = [await rig.engine.add_request("ab", SamplingParams(max_tokens=3)) for _ in range(3)]
    readers = [asyncio.create_task(read_all(stream)) for stream in streams]
    await hops()
    rig.core.release()
    for outputs in await asyncio.wait_for(asyncio.gather(*readers), HANG_SECONDS):
        assert "".join(output.text for output in outputs) == "aba"


async def test_a_long_text_is_tokenised_without_blocking_the_loop(config: Config) -> None:
    folder = config.model.path
    long_config = build_test_config(write_model_folder(folder / "long", context_tokens=100_000))
    rig = Rig(long_config, held=True)
    await rig.engine.start()
    await rig.engine.wait_ready()
    ran_meanwhile = False

    async def other_work() -> None:
        nonlocal ran_meanwhile
        ran_meanwhile = True

    adding = asyncio.create_task(rig.engine.add_request("ab " * 20_000, SamplingParams()))
    other = asyncio.create_task(other_work())
    await other
    assert not adding.done()
    assert ran_meanwhile
    stream = await adding
    assert stream.num_prompt_tokens == len(rig.core.added[0].prompt_token_ids) > 20_000
    await rig.engine.shutdown()


async def test_prompts_that_are_long_together_are_tokenised_without_blocking_the_loop(
    rig: Rig,
) -> None:
    adding = asyncio.create_task(rig.engine.add_requests(["ab " * 15] * 1000, SamplingParams()))
    other = asyncio.create_task(asyncio.sleep(0))
    await other
    assert not adding.done()
    assert len((await within(adding, "they are queued")).numbers) == 1000


async def test_what_a_request_lists_is_looked_at_once_for_all_its_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = rig.engine.processor.tokenizer
    assert tokenizer is not None
    encoded: list[str] = []
    encode = Tokenizer.encode

    def note(self: Tokenizer, text: str, **options: bool) -> list[int]:
        encoded.append(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", note)
    params = SamplingParams(n=50, bad_words=("stop", "go"), max_tokens=2)
    group = await rig.engine.add_requests(["ab", "cd"], params)
    assert len(group.numbers) == 100
    assert sorted(encoded) == sorted(["ab", "cd", "stop", " stop", "go", " go"])
    words = {request.params.bad_words_token_ids for request in rig.core.added}
    assert len(words) == 1
    assert words != {()}


async def test_requests_are_refused_with_the_progress_until_the_engine_is_ready(
    config: Config,
) -> None:
    rig = Rig(config, ready_on_start=False)
    await rig.engine.start()
    rig.core.on_event(ProgressBody("loading weights", 0.4))
    await hops()
    with pytest.raises(RequestError, match="starting: loading weights 40%") as caught:
        await rig.engine.add_request("a", SamplingParams())
    assert caught.value.status == 503
    rig.core.become_ready()
    report = await asyncio.wait_for(rig.engine.wait_ready(), HANG_SECONDS)
    assert rig.engine.status.report == report
    await rig.engine.add_request("a", SamplingParams())
    await rig.engine.shutdown()


async def test_a_failed_start_is_told_to_whoever_waits(config: Config) -> None:
    rig = Rig(config, ready_on_start=False)
    await rig.engine.start()
    waiting = asyncio.create_task(rig.engine.wait_ready())
    rig.core.die("model.safetensors: truncated")
    with pytest.raises(EngineDeadError, match="truncated"):
        await asyncio.wait_for(waiting, HANG_SECONDS)


async def test_when_the_engine_dies_every_open_request_gets_the_reason(rig: Rig) -> None:
    rig.core.held = True
    streams = [await rig.engine.add_request("abcd", SamplingParams()) for _ in range(3)]
    rig.core.step()
    rig.core.die("killed by signal 9")
    assert await asyncio.wait_for(rig.engine.wait_dead(), HANG_SECONDS) == "killed by signal 9"
    for stream in streams:
        first = await within(anext(stream), "what had come is delivered")
        assert first.text == "a"
        with pytest.raises(EngineDeadError, match="killed by signal 9"):
            await within(anext(stream), "an open request was told of the engine's death")
    with pytest.raises(EngineDeadError, match="killed by signal 9"):
        await rig.engine.add_request("a", SamplingParams())
    assert rig.engine.status.state is EngineState.DEAD
    assert rig.core.aborted == []


async def test_when_the_engine_dies_every_call_gets_the_reason(rig: Rig) -> None:
    rig.core.held = True
    calls = [asyncio.create_task(rig.engine.call_utility("reset_prefix_cache")) for _ in range(2)]
    await eventually(lambda: len(rig.core.utilities) == 2, "both calls are in the engine")
    rig.core.die("killed by signal 9")
    for call in calls:
        with pytest.raises(EngineDeadError, match="killed by signal 9"):
            await within(call, "a call was told of the engine's death")


async def test_a_drain_lets_running_requests_finish_and_takes_no_more(rig: Rig) -> None:
    rig.core.held = True
    stream = await rig.engine.add_request("ab", SamplingParams(max_tokens=2))
    draining = asyncio.create_task(rig.engine.drain(3600))
    await hops()
    with pytest.raises(RequestError, match="draining") as caught:
        await rig.engine.add_request("a", SamplingParams())
    assert caught.value.status == 503
    assert not draining.done()
    rig.core.release()
    assert await within(draining, "the drain is over with the last request") == 0
    (output,) = await read_all(stream)
    assert output.text == "ab"


async def test_a_drain_that_takes_too_long_aborts_with_an_error(rig: Rig) -> None:
    rig.core.held = True
    stream = await rig.engine.add_request("ab", SamplingParams())
    assert await rig.engine.drain(0.0) == 1
    with pytest.raises(RequestError, match="shut down before"):
        await read_all(stream)
    assert rig.core.aborted == [1]


async def test_a_broken_message_fails_its_requests_and_no_others(rig: Rig) -> None:
    rig.core.held = True
    first = await rig.engine.add_request("ab", SamplingParams(max_tokens=2))
    second = await rig.engine.add_request("ab", SamplingParams(max_tokens=2))
    unknown_end = FinishedRow(1, "a reason that there is not", "", 0)
    rig.core.on_event(stream_body(finished=[unknown_end]))
    with pytest.raises(RuntimeError, match="could not be processed"):
        await read_all(first)
    rig.core.release()
    assert (await read_all(second))[-1].finished


async def test_a_step_that_fails_comes_behind_the_late_step_before_it(rig: Rig) -> None:
    rig.core.held = True
    stream = await rig.engine.add_request("ab", SamplingParams(max_tokens=2))
    token = rig.engine.processor.inputs.tokenize("x", add_special_tokens=False)[0]
    # Both before the loop has its turn.
    rig.core.on_event(stream_body([(1, token)]))
    rig.core.on_event(stream_body(finished=[FinishedRow(1, "no such reason", "", 0)]))
    assert (await anext(stream)).text == "x"
    with pytest.raises(RuntimeError, match="could not be processed"):
        await anext(stream)


async def test_a_stalled_rank_stops_new_requests_until_it_gets_on(rig: Rig) -> None:
    rig.core.on_event(CoreStalled(rank=1, silent_seconds=130.2))
    await eventually(lambda: rig.engine.status.state is EngineState.STALLED, "stalled")
    assert rig.engine.status.reason == "rank 1 has computed nothing for 130 s"
    with pytest.raises(RequestError, match="the engine is stalled: rank 1"):
        await rig.engine.add_request("a", SamplingParams())
    rig.core.on_event(CoreResumed(rank=1))
    await eventually(lambda: rig.engine.status.state is EngineState.READY, "ready again")
    stream = await rig.engine.add_request("ab", SamplingParams(max_tokens=2))
    assert (await read_all(stream))[-1].finished


async def test_open_requests_outlast_a_stall(rig: Rig) -> None:
    rig.core.held = True
    stream = await rig.engine.add_request("ab", SamplingParams(max_tokens=2))
    rig.core.on_event(CoreStalled(rank=0, silent_seconds=130.0))
    await eventually(lambda: rig.engine.status.state is EngineState.STALLED, "stalled")
    rig.core.release()
    assert (await read_all(stream))[-1].finished


async def test_a_drain_is_not_undone_by_a_stall_that_ends(rig: Rig) -> None:
    await rig.engine.drain(0.0)
    rig.core.on_event(CoreStalled(rank=0, silent_seconds=130.0))
    rig.core.on_event(CoreResumed(rank=0))
    rig.core.report_stats(steps_total=7)
    await eventually(lambda: rig.engine.stats is not None, "the events were handled")
    assert rig.engine.status.state is EngineState.DRAINING


async def test_stats_are_the_sum_over_ranks(rig: Rig) -> None:
    rig.core.report_stats(rank=0, requests_running=2, steps_total=10)
    rig.core.report_stats(rank=1, requests_running=1, steps_total=5)
    await eventually(lambda: len(rig.engine.stats_by_rank) == 2, "both ranks")
    assert rig.engine.stats is not None
    assert (rig.engine.stats.requests_running, rig.engine.stats.steps_total) == (3, 15)


async def test_a_step_brings_its_totals_and_a_late_heartbeat_does_not_undo_them(rig: Rig) -> None:
    late, step = rank_stats(rank=0, number=2), rank_stats(rank=0, number=3)
    rig.core.on_event(StreamBody(b"", b"", [], rank_stats=step))
    rig.core.on_event(late)
    await eventually(lambda: rig.engine.stats_by_rank.get(0) == step, "the step's word")
    rig.core.on_event(CoreStalled(rank=0, silent_seconds=130.0))
    await eventually(lambda: rig.engine.status.state is EngineState.STALLED, "all is handled")
    assert rig.engine.stats_by_rank == {0: step}


async def test_shutdown_ends_the_core(rig: Rig, tmp_path: Path) -> None:
    await rig.engine.shutdown()
    assert rig.core.stopped
    with pytest.raises(EngineDeadError, match="shut down"):
        await rig.engine.add_request("a", SamplingParams())


async def test_within_the_context_the_engine_serves_and_after_it_is_gone(config: Config) -> None:
    rig = Rig(config)
    async with rig.engine as engine:
        assert engine.status.state is EngineState.READY
    assert rig.engine.status.state is EngineState.DEAD
    assert rig.core.stopped


async def test_a_context_that_cannot_be_entered_leaves_no_process_behind(config: Config) -> None:
    rig = Rig(config, ready_on_start=False)

    async def enter() -> None:
        async with rig.engine:
            pytest.fail("it never started")

    entering = asyncio.create_task(enter())
    await eventually(lambda: rig.core.started, "started")
    rig.core.die("model.safetensors: truncated")
    with pytest.raises(EngineDeadError, match="truncated"):
        await asyncio.wait_for(entering, HANG_SECONDS)
    assert rig.core.stopped
