"""Answers that go on at another replica, whichever step they are taken at and whatever is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atom.config import Config
from atom.entrypoints.handover.token_frames import Failure, TokenFrames, next_frame
from atom.errors import AtomError, RequestError
from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.handover.relays import ReplicaLostError, TakenRequest
from atom.model_engine.front.handover.worker_core import WorkerCore, WorkerFacts
from atom.model_engine.front.request_stream import RequestGroup
from atom.model_engine.request import AnswerMove, LoRARequest, Request, RequestOutput
from atom.model_engine.wire.outlook_body import Limit, OutlookBody, Predicted, StepTotals
from atom.sampling_params import SamplingParams
from atom.structured_outputs.thinking_budget import ThinkingBudget
from tests.support.engine_core.front_half import (
    EchoCore,
    build_test_config,
    rank_stats,
    write_model_folder,
)
from tests.support.waiting import HANG_SECONDS

TOKENS = 12
MOST_TURNS = 10_000


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return build_test_config(write_model_folder(tmp_path_factory.mktemp("model")))


@dataclass
class Replica:
    """Another engine, reached as over a connection. losses: after so many outputs each of the
    next connections breaks; refuses: it takes nothing."""

    engine: AsyncLLMEngine
    losses: list[int] = field(default_factory=list)
    refuses: bool = False
    asked: int = 0
    name: str = "other"

    async def are_there(self) -> bool:
        return True

    @asynccontextmanager
    async def ask(self, handed: HandedRequest) -> AsyncIterator[TakenRequest]:
        self.asked += 1
        if self.refuses:
            raise RequestError("full", status=503)
        data = msgspec.msgpack.encode(handed)
        told = msgspec.msgpack.decode(data, type=HandedRequest)
        group, version = await self.engine.continue_request(told)
        frames = TokenFrames(group)
        try:
            yield TakenRequest(self._outputs(frames), version, f"{self.name}-{self.asked}")
        finally:
            frames.close()

    async def _outputs(self, frames: TokenFrames) -> AsyncIterator[RequestOutput]:
        left = self.losses.pop(0) if self.losses else None
        came = asyncio.Event()
        frames.listen(came.set)
        while not frames.ended:
            reader = asyncio.StreamReader()
            reader.feed_data(data := frames.take())
            reader.feed_eof()
            if not data:
                came.clear()
                await came.wait()
            while not reader.at_eof():
                if left is not None and (left := left - 1) < 0:
                    raise ReplicaLostError("gone")
                frame = await next_frame(reader)
                assert frame is not None
                assert not isinstance(frame, Failure), frame
                yield frame.output


def echo(engine: AsyncLLMEngine) -> EchoCore:
    core = engine._core
    assert isinstance(core, EchoCore)
    return core


def held_engine(config: Config, replica: Replica | None = None) -> AsyncLLMEngine:
    return AsyncLLMEngine(
        config, core_factory=lambda c, on: EchoCore(c, on, held=True), replicas=replica
    )


@asynccontextmanager
async def steps_of(engine: AsyncLLMEngine) -> AsyncIterator[None]:
    """A step of its core in every turn of the loop."""

    async def run() -> None:
        while True:
            echo(engine).step()
            await asyncio.sleep(0)

    running = asyncio.create_task(run())
    yield
    running.cancel()


async def until(so: Callable[[], bool]) -> None:
    for _ in range(MOST_TURNS):
        if so():
            return
        await asyncio.sleep(0)  # the next turn of the loop
    raise AssertionError("it did not come")


def expected(prompt: str) -> str:
    return (prompt * TOKENS)[:TOKENS]


async def text_of(engine: AsyncLLMEngine, prompt: str) -> str:
    params = SamplingParams(max_tokens=TOKENS, logprobs=None)
    return "".join([output.text async for output in engine.generate(prompt, params)])


CASES = {
    "prompts": st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
    "steps": st.integers(0, TOKENS - 1),
    "dies": st.booleans(),
    "refuses": st.booleans(),
    "losses": st.lists(st.integers(0, TOKENS), max_size=2),
}


@given(**CASES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_an_answer_goes_on_whatever_becomes_of_what_computes_it(
    config: Config, prompts: list[str], steps: int, dies: bool, refuses: bool, losses: list[int]
) -> None:
    """One loss is survived, a second may be the request's own doing; nothing stays open."""
    async with held_engine(config) as other, steps_of(other):
        replica = Replica(other, losses[: len(losses) if len(prompts) == 1 else 1], refuses)
        async with held_engine(config, replica) as engine:
            core = echo(engine)
            answers = [asyncio.create_task(text_of(engine, prompt)) for prompt in prompts]
            await until(lambda: len(core.added) == len(prompts))
            for _ in range(steps):
                core.step()
            if dies:
                core.die()
                await until(lambda: engine.status.state is EngineState.DEAD)
            else:
                assert await asyncio.wait_for(engine.hand_over(), HANG_SECONDS) is not refuses
                core.release()  # what it still has
            done = await asyncio.wait_for(
                asyncio.gather(*answers, return_exceptions=True), HANG_SECONDS
            )
            lost = refuses and dies
            lost_twice = not refuses and len(losses) + dies > 1
            for prompt, text in zip(prompts, done, strict=True):
                if isinstance(text, BaseException):
                    assert isinstance(text, AtomError)
                    assert lost or lost_twice
                else:
                    assert text == expected(prompt)
            assert not (lost and any(isinstance(text, str) for text in done))
            assert replica.asked >= len(prompts)
            await asyncio.wait_for(engine.wait_idle(HANG_SECONDS), HANG_SECONDS)
            assert engine.open_requests == 0
        await asyncio.wait_for(other.wait_idle(HANG_SECONDS), HANG_SECONDS)
        assert other.open_requests == 0


async def test_a_client_that_leaves_ends_the_relay_and_what_the_replica_computes(
    config: Config,
) -> None:
    async with held_engine(config) as other:
        replica = Replica(other)
        async with held_engine(config, replica) as engine:
            group = await engine.add_requests(["ab"], SamplingParams(max_tokens=TOKENS))
            assert await engine.hand_over()
            await until(lambda: bool(other.open_requests))
            group.close()
            await asyncio.wait_for(other.wait_idle(HANG_SECONDS), HANG_SECONDS)
            assert other.open_requests == engine.open_requests == 0


@dataclass
class Worker(Replica):
    """Computes for an engine that has none of its own."""

    async def look(self) -> WorkerFacts:
        report = self.engine.status.report
        assert report is not None
        return WorkerFacts(report, "theirs")


def engine_of(config: Config, worker: Worker) -> AsyncLLMEngine:
    return AsyncLLMEngine(config, core_factory=lambda _, on_event: WorkerCore(worker, on_event))


@given(prompts=CASES["prompts"], refuses=st.booleans(), losses=CASES["losses"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_an_answer_of_workers_is_theirs_whatever_becomes_of_one(
    config: Config, prompts: list[str], refuses: bool, losses: list[int]
) -> None:
    """It goes on behind one loss from its very beginning; a second may be its own doing."""
    async with held_engine(config) as other, steps_of(other):
        other.pauses.weights_version = "theirs"
        worker = Worker(other, losses[: len(losses) if len(prompts) == 1 else 1], refuses)
        async with engine_of(config, worker) as engine:
            assert engine.pauses.weights_version == "theirs"
            answers = [text_of(engine, prompt) for prompt in prompts]
            done = await asyncio.wait_for(
                asyncio.gather(*answers, return_exceptions=True), HANG_SECONDS
            )
            lost_twice = len(worker.losses) == 0 and len(losses) > 1 and len(prompts) == 1
            for prompt, text in zip(prompts, done, strict=True):
                if isinstance(text, BaseException):
                    assert isinstance(text, RequestError)
                    assert text.status == 503
                    assert refuses or lost_twice
                else:
                    assert text == expected(prompt)
                    assert not refuses
            await asyncio.wait_for(engine.wait_idle(HANG_SECONDS), HANG_SECONDS)
        await asyncio.wait_for(other.wait_idle(HANG_SECONDS), HANG_SECONDS)


async def test_a_client_that_leaves_before_a_worker_was_asked_leaves_nothing_behind(
    config: Config,
) -> None:
    async with held_engine(config) as other, engine_of(config, worker := Worker(other)) as engine:
        group = await engine.add_requests(["ab"], SamplingParams(max_tokens=TOKENS))
        group.close()
        await asyncio.wait_for(engine.wait_idle(HANG_SECONDS), HANG_SECONDS)
        assert worker.asked == other.open_requests == engine.open_requests == 0


def told_late(engine: AsyncLLMEngine) -> None:
    """Let the core of an engine predict a first token in 7 s."""
    late = Predicted(7.0, 0.01, 0.5, 0, Limit.COMPUTE, step=0.01, row=0.0, token=1e-5)
    outlook = OutlookBody(StepTotals(steps=9, seconds=0.5), late)
    echo(engine).on_event(msgspec.structs.replace(rank_stats(0, 1), outlook=outlook))


async def outputs_of(group: RequestGroup) -> list[RequestOutput]:
    """Read a group to its end, without waiting for its clock."""
    came: list[RequestOutput] = []
    for _ in range(MOST_TURNS):
        came += [output for _, output in group.take()]
        if group.drained:
            return came
        await asyncio.sleep(0)  # the next turn of the loop
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("own_ms", "asked_seconds", "is_late"),
    [(None, 0.5, True), (None, 8.0, False), (None, None, False), (500, None, True),
     (500, 8.0, False)],
)  # fmt: skip
async def test_a_worker_judges_the_deadline_of_a_request(
    config: Config, own_ms: int | None, asked_seconds: float | None, is_late: bool
) -> None:
    """The server in front of it computes nothing and predicts nothing."""
    scheduler = replace(config.scheduler, deadline_ms=own_ms)
    async with held_engine(replace(config, scheduler=scheduler)) as other, steps_of(other):
        told_late(other)
        await until(lambda: bool(other.stats_by_rank))
        async with engine_of(config, Worker(other)) as engine:
            params = SamplingParams(max_tokens=TOKENS)
            group = await engine.add_requests(["ab"], params, deadline_seconds=asked_seconds)
            if is_late:
                with pytest.raises(RequestError, match="after the deadline") as error:
                    await outputs_of(group)
                assert (error.value.status, error.value.code) == (429, "deadline_exceeded")
            else:
                assert (await outputs_of(group))[-1].finished


async def test_what_only_an_engine_can_do_is_refused_and_names_of_adapters_are_not(
    config: Config,
) -> None:
    async with held_engine(config) as other, engine_of(config, Worker(other)) as engine:
        for method in ("reset_prefix_cache", "sleep", "update_weights"):
            with pytest.raises(RequestError, match=f"{method}: no engine runs here") as error:
                await engine.call_utility(method)
            assert error.value.status == 501
        assert await engine.call_utility("load_lora", 1, "folder") == [None]


async def test_an_answer_that_was_begun_keeps_to_the_weights_of_its_beginning(
    config: Config,
) -> None:
    async with held_engine(config) as other:
        other.pauses.weights_version = "theirs"
        async with engine_of(config, Worker(other, [3])) as engine:
            answer = asyncio.create_task(text_of(engine, "ab"))
            for turn in range(MOST_TURNS):
                if answer.done():
                    break
                if turn == MOST_TURNS // 2:
                    raise AssertionError("it does not end")
                if len(echo(other).added) and other.open_requests:
                    other.pauses.weights_version = "others"
                echo(other).step()
                await asyncio.sleep(0)
            with pytest.raises(RequestError, match="begun with weights theirs"):
                await answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_token_ids": [10**6]}, "outside the vocabulary"),
        ({"output_token_ids": [-1]}, "outside the vocabulary"),
        ({"prompt_token_ids": []}, "empty"),
        ({"max_total_tokens": 3}, "must be more than the 3 tokens"),
        ({"max_total_tokens": 10**6}, "at most 64"),
        ({"priority": 2**62}, "priority must be between"),
        ({"client_id": "x" * 65}, "client_id must be at most 64"),
        ({"client_id": "key-admin\n"}, "printable"),
        ({"cache_salt": "x" * 257}, "cache_salt must be at most"),
        ({"arrive_time": float("nan")}, "arrive_time must be a finite"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds must be a finite"),
        ({"params": SamplingParams(max_tokens=2**31, min_tokens=2**31)}, "max_tokens is"),
        ({"params": SamplingParams(top_k=2**63)}, "top_k is"),
        ({"params": SamplingParams(n=2)}, "n is 2"),
        (
            {"params": SamplingParams(thinking=ThinkingBudget(1, True, (1,), (5,), (10**6,)))},
            "vocabulary",
        ),
        ({"params": SamplingParams(thinking=ThinkingBudget(0, True, (1,), ()))}, "no tokens"),
    ],
)
async def test_what_comes_from_outside_is_checked(
    config: Config, change: dict[str, object], words: str
) -> None:
    async with AsyncLLMEngine(config, core_factory=EchoCore) as engine:
        good = Request(1, [5, 6], SamplingParams(), 9, arrive_time=0.0, output_token_ids=[5])
        bad = msgspec.structs.replace(good, **change)
        version = engine.pauses.weights_version
        with pytest.raises(RequestError, match=words):
            await engine.continue_request(HandedRequest(bad, "name", version))
        with pytest.raises(RequestError, match="begun with weights") as error:
            await engine.continue_request(HandedRequest(good, "name", "others"))
        assert error.value.status == 409


def adapter_in(folder: Path, weights: bytes, alpha: int = 8) -> Path:
    """Files of which only a digest is taken here."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(f'{{"lora_alpha": {alpha}}}')
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def serving_adapter(config: Config, folder: Path) -> AsyncLLMEngine:
    modules = (LoraModule(name="sql", path=str(folder)),)
    return AsyncLLMEngine(replace(config, lora=LoraConfig(modules=modules)), core_factory=EchoCore)


@pytest.mark.parametrize(
    ("weights", "alpha", "goes_on"), [(b"same", 8, True), (b"else", 8, False), (b"same", 9, False)]
)
async def test_an_adapters_answer_goes_on_by_the_same_weights_alone(
    config: Config, tmp_path: Path, weights: bytes, alpha: int, goes_on: bool
) -> None:
    ours = adapter_in(tmp_path / "ours", b"same")
    theirs = adapter_in(tmp_path / "theirs", weights, alpha)
    begun = Request(
        1, [5, 6], SamplingParams(), 9, arrive_time=0.0, output_token_ids=[5],
        lora=LoRARequest("sql", 1),
    )  # fmt: skip
    async with serving_adapter(config, ours) as first, serving_adapter(config, theirs) as second:
        version = first._digests.version(begun.lora)
        assert version != first.pauses.weights_version
        handed = HandedRequest(begun, "name", version)
        if goes_on:
            group, told = await second.continue_request(handed)
            group.close()
            assert told == version
            return
        with pytest.raises(RequestError, match="begun with weights") as error:
            await second.continue_request(handed)
        assert error.value.status == 409
        fresh = msgspec.structs.replace(begun, output_token_ids=[])
        group, told = await second.continue_request(HandedRequest(fresh, "name", ANY_WEIGHTS))
        group.close()
        assert told == second._digests.version(begun.lora)


async def test_an_adapter_whose_files_are_gone_goes_on_nowhere(
    config: Config, tmp_path: Path
) -> None:
    async with serving_adapter(config, tmp_path / "none") as engine:
        lora = LoRARequest("sql", 1)
        begun = Request(1, [5, 6], SamplingParams(), 9, 0.0, output_token_ids=[5], lora=lora)
        handed = HandedRequest(begun, "name", f"{engine.pauses.weights_version}+unread")
        with pytest.raises(RequestError, match="begun with weights"):
            await engine.continue_request(handed)


async def test_a_reader_learns_which_servers_its_answer_moved_between(config: Config) -> None:
    other = held_engine(config)
    replica = Replica(other, losses=[3])
    engine = held_engine(config, replica)
    async with engine, other, steps_of(other):
        group = await engine.add_requests(["abc"], SamplingParams(max_tokens=TOKENS))
        echo(engine).step()
        await until(lambda: bool(group._unread))
        await engine.hand_over()
        async for _ in group:
            pass
    own = socket.gethostname()
    assert group.moves == [
        AnswerMove(own, "other-1", 1),
        AnswerMove("other-1", "other-2", 1 + 3),
    ]
