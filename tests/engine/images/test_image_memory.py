"""The decoded images of open requests take a bounded memory, which comes back whatever happens to
the requests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from atom.errors import EngineDeadError, RequestError
from atom.images.image_memory import ImageMemory, Wait, timed_out
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.handover.handed_request import ANY_WEIGHTS, HandedRequest
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.request_image import pixel_bytes
from atom.model_engine.wire.core_port import RequestFailed
from tests.support.engine_core.front_half import EchoCore, build_test_config
from tests.support.random_search import examples
from tests.support.server.http_app import AppRig, serve_engine
from tests.support.server.seeing_model import (
    SIDE,
    data_url,
    image_part,
    picture,
    write_seeing_model,
)
from tests.support.waiting import eventually

CHAT = "/v1/chat/completions"
PIXELS = 4 * 3 * SIDE * SIDE  # bytes of one token
ROOM = 200 * PIXELS  # about two of the largest pictures


@contextlib.asynccontextmanager
async def serve(folder: Path, room: int = ROOM, **options: Any) -> AsyncIterator[AppRig]:
    """Serve a model whose largest picture has some 90 tokens, and whose core keeps its tokens."""
    timeout = options.pop("request_timeout_seconds", None)
    context_tokens = options.pop("context_tokens", 96)
    model = write_seeing_model(folder, context_tokens=context_tokens)
    config = build_test_config(model, **options)
    processor = InputOutputProcessor(config, image_memory_bytes=room)
    cores: list[EchoCore] = []

    def make_core(config: Any, on_event: Any) -> EchoCore:
        cores.append(EchoCore(config, on_event, held=True))
        return cores[0]

    engine = AsyncLLMEngine(
        config, processor, core_factory=make_core, request_timeout_seconds=timeout
    )
    async with serve_engine(engine) as rig:
        await engine.wait_ready()
        yield AppRig(rig.state, rig.engine, rig.client, rig.port, cores[0])


def memory_of(rig: AppRig) -> ImageMemory:
    assert rig.engine.images is not None
    return rig.engine.images.memory


def ask(rig: AppRig, *files: bytes, **fields: Any) -> asyncio.Task[httpx.Response]:
    messages = [{"role": "user", "content": [image_part(file) for file in files]}]
    body = {"messages": messages, "max_tokens": 2, **fields}
    return asyncio.create_task(rig.post(CHAT, **body))


def _is_full(rig: AppRig) -> bool:
    """Return whether nothing moves on: what is not queued waits for memory."""
    waiting = memory_of(rig).waiting.total()
    return waiting > 0 and waiting + len(rig.core.added) == 8


# ---- turns ------------------------------------------------------------------------------------


async def test_the_client_with_the_least_memory_is_next() -> None:
    memory = ImageMemory(10)
    granted: list[str] = []

    async def wait(group: str, size: int) -> None:
        await memory.reserve(group, size, 1)
        granted.append(group)

    first = [asyncio.create_task(wait("greedy", 5)) for _ in range(4)]
    await asyncio.sleep(0)
    other = asyncio.create_task(wait("other", 5))
    await asyncio.sleep(0)
    assert granted == ["greedy", "greedy"]
    memory.change("greedy", -5)
    await other
    assert granted == ["greedy", "greedy", "other"]
    for task in first:
        task.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    memory.change("greedy", -5)
    memory.change("other", -5)
    assert memory.held_bytes == memory.waiting.total() == 0


async def test_a_large_request_is_not_overtaken_for_ever() -> None:
    memory = ImageMemory(10)
    memory.change("a", 4)
    large = asyncio.create_task(memory.reserve("b", 10, 1))
    await asyncio.sleep(0)
    small = asyncio.create_task(memory.reserve("c", 1, 1))
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done()
    memory.change("a", -4)
    await large
    assert memory.held_bytes == 10
    small.cancel()
    memory.change("b", -10)


@pytest.mark.parametrize("seed", range(examples(20)))
async def test_memory_comes_back_from_every_order_of_ends(seed: int) -> None:
    """Reservations that are cancelled before, in and after their turn, settle, and end."""
    draw, memory = random.Random(seed), ImageMemory(100)

    async def live(group: str, wanted: int, used: int, number: int) -> None:
        wait = draw.choice([None, None, Wait(60.0, timed_out)])
        share = memory.share(group, copies=draw.randint(1, 2), wait=wait)
        try:
            with contextlib.suppress(RequestError), share:
                await share.reserve(wanted)
                assert memory.held_bytes <= memory.most_bytes
                await asyncio.sleep(0)
                share.settle(used)
                memory.charge(number, group, used * share.copies)
            await asyncio.sleep(0)
        finally:
            memory.release(number)
            memory.release(number)

    tasks = []
    for number in range(40):
        wanted = draw.randint(0, 70)
        life = live(draw.choice("abc"), wanted, draw.randint(0, wanted), number)
        tasks.append(asyncio.create_task(life))
        for _ in range(draw.randrange(3)):
            await asyncio.sleep(0)
        if draw.random() < 0.4:
            draw.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert memory.figures() == {"held_bytes": 0, "waiting": 0}


async def test_a_server_that_ends_lets_none_wait() -> None:
    memory = ImageMemory(10)
    memory.change("a", 10)
    waiting = asyncio.create_task(memory.reserve("b", 1, 1))
    await asyncio.sleep(0)
    memory.close()
    with pytest.raises(EngineDeadError):
        await waiting
    with pytest.raises(EngineDeadError):
        await memory.reserve("b", 1, 1)


# ---- requests ---------------------------------------------------------------------------------


async def test_requests_wait_for_memory_and_go_on(tmp_path: Path) -> None:
    async with serve(tmp_path / "seeing") as rig:
        memory = memory_of(rig)
        asked = [ask(rig, picture(5, 4 + at)) for at in range(8)]
        await eventually(lambda: _is_full(rig), "some have to wait")
        waiting = memory.waiting.total()
        assert memory.held_bytes <= ROOM
        metrics = await rig.metrics()
        assert metrics["mm_requests_held"] == waiting
        assert metrics["mm_waiting_bytes"] == memory.held_bytes
        rig.core.release()  # they end
        for each in asked:
            assert (await each).status_code == 200
        assert memory.figures() == {"held_bytes": 0, "waiting": 0}


async def test_the_bound_of_waiting_requests_counts_those_for_memory(tmp_path: Path) -> None:
    async with serve(tmp_path / "seeing", max_waiting_requests=8) as rig:
        asked = [ask(rig, picture(5, 4 + at)) for at in range(8)]
        await eventually(lambda: _is_full(rig), "some have to wait")
        source = {"type": "url", "url": data_url(picture(1, 1))}
        content = [{"type": "image", "source": source}]
        refused = [
            await ask(rig, picture(1, 1), max_tokens=1),
            await rig.post(
                "/v1/messages", model="tiny", max_tokens=1,
                messages=[{"role": "user", "content": content}],
            ),
        ]  # fmt: skip
        assert [each.status_code for each in refused] == [429, 429]
        assert all(int(each.headers["retry-after"]) > 0 for each in refused)
        assert refused[0].json()["error"]["code"] == "rate_limit_exceeded"
        assert refused[1].json()["error"]["type"] == "rate_limit_error"
        rig.core.release()
        assert {(await each).status_code for each in asked} == {200}


async def test_a_request_waits_no_longer_than_its_time(tmp_path: Path) -> None:
    async with serve(tmp_path / "seeing") as rig:
        memory = memory_of(rig)
        memory.change("another", ROOM)
        late = await ask(rig, picture(1, 1), timeout=0.05)
        assert late.status_code == 504, late.text
        assert "--image-memory-mib" in late.json()["error"]["message"]
        assert memory.waiting.total() == 0


async def test_a_request_waits_no_longer_than_its_deadline(tmp_path: Path) -> None:
    """It gets the answer of a queued request whose deadline has passed."""
    options = {"deadline_ms": 50, "deadline_action": "queue"}
    async with serve(tmp_path / "seeing", request_timeout_seconds=60.0, **options) as rig:
        memory = memory_of(rig)
        memory.change("another", ROOM)
        late = await ask(rig, picture(1, 1))
        assert late.status_code == 503, late.text
        assert late.json()["error"]["code"] == "deadline_exceeded"
        assert int(late.headers["retry-after"]) > 0
        assert memory.waiting.total() == 0


async def test_running_requests_keep_their_images_within_the_bound(tmp_path: Path) -> None:
    """Of 64 requests with 8 of the largest images each, the engine never has more pixels than the
    plan's, whether they wait or run, and they are queued in the order in which they came."""
    files = [picture(4, 2 + at, "red") for at in range(8)]
    most_of_one = sum(4 * (2 + at) for at in range(8)) * PIXELS
    room = 3 * most_of_one
    async with serve(tmp_path / "seeing", room=room, context_tokens=512) as rig:
        core, memory = rig.core, memory_of(rig)
        messages = [{"role": "user", "content": [image_part(file) for file in files]}]
        assert (await rig.post("/tokenize", messages=messages)).status_code == 200
        # From now on their sizes are known.
        asked = [ask(rig, *files, max_tokens=3, seed=at) for at in range(64)]
        peak = most_running = 0
        while not all(each.done() for each in asked):
            await eventually(lambda: _waits_or_ends(rig, asked), "nothing moves on by itself")
            open_ones = core.open_requests
            peak = max(peak, sum(pixel_bytes(each.images) for each in open_ones))
            most_running = max(most_running, len(open_ones))
            assert memory.held_bytes <= room
            core.step()  # the first tokens of some, the last ones of others
        assert {(await each).status_code for each in asked} == {200}
        assert most_running == 3
        assert peak == room
        assert [each.params.seed for each in core.added] == list(range(64))
        assert memory.figures() == {"held_bytes": 0, "waiting": 0}


def _waits_or_ends(rig: AppRig, asked: list[asyncio.Task[httpx.Response]]) -> bool:
    """Return whether every request is in the engine, waits for memory, or has ended."""
    ended = sum(each.done() for each in asked)
    return ended + len(rig.core.open_requests) + memory_of(rig).waiting.total() == len(asked)


async def test_more_answers_than_there_is_memory_for_are_refused(tmp_path: Path) -> None:
    async with serve(tmp_path / "seeing", room=60 * PIXELS) as rig:
        refused = await ask(rig, picture(5, 5), n=3)
        assert refused.status_code == 400
        assert "ask for fewer answers" in refused.json()["error"]["message"]
        too_many = await ask(rig, picture(6, 6), picture(6, 5))
        assert too_many.status_code == 400
        assert too_many.json()["error"]["code"] == "images_too_large"
        assert memory_of(rig).held_bytes == 0


async def test_an_answer_of_another_replica_needs_room(tmp_path: Path) -> None:
    async with serve(tmp_path / "seeing") as rig:
        memory = memory_of(rig)
        asked = ask(rig, picture(2, 2))
        await eventually(lambda: bool(rig.core.added), "it is queued")
        handed = HandedRequest(rig.core.added[0], "its", ANY_WEIGHTS)
        memory.change("another", ROOM - 7 * PIXELS)
        with pytest.raises(RequestError) as refused:
            await rig.engine.continue_request(handed)
        assert refused.value.status == 503
        memory.change("another", 7 * PIXELS - ROOM)
        group, _ = await rig.engine.continue_request(handed)
        assert memory.held_bytes > 8 * PIXELS - 1
        group.close()
        rig.core.release()
        await asked
        assert memory.held_bytes == 0


# ---- lives ------------------------------------------------------------------------------------

_ACTS = ("ask", "ask", "ask", "count", "bad", "leave", "step", "fail", "abort", "hand")


@pytest.mark.parametrize("seed", range(examples(2)))
async def test_memory_comes_back_from_every_life_of_requests(seed: int, tmp_path: Path) -> None:
    """Arrivals, clients that leave, bad files, faults, aborts and deadlines, in any order."""
    draw = random.Random(seed)
    async with serve(tmp_path / "seeing", request_timeout_seconds=60.0) as rig:
        memory, most = memory_of(rig), 0
        open_ones: list[asyncio.Task[httpx.Response]] = []
        for _ in range(30):
            await _act(draw.choice(_ACTS), draw, rig, open_ones)
            await asyncio.sleep(0)
            most = max(most, memory.held_bytes)
        await eventually(lambda: _advance(rig, open_ones), "all have ended")
        answers = await asyncio.gather(*open_ones, return_exceptions=True)
        statuses = {each.status_code for each in answers if isinstance(each, httpx.Response)}
        assert statuses <= {200, 400, 499, 503, 504}, statuses
        assert 0 < most <= ROOM
        await eventually(lambda: not any(memory.figures().values()), "the memory is back")
        assert rig.engine.open_requests == 0


def _advance(rig: AppRig, asked: list[asyncio.Task[httpx.Response]]) -> bool:
    rig.core.step()
    return all(each.done() for each in asked)


async def _act(
    act: str, draw: random.Random, rig: AppRig, asked: list[asyncio.Task[httpx.Response]]
) -> None:
    files = [picture(draw.randint(1, 5), draw.randint(1, 4)) for _ in range(draw.randint(1, 2))]
    if act == "ask":
        fields = {"n": draw.randint(1, 2), "timeout": draw.choice([None, 0.2, 30.0])}
        asked.append(ask(rig, *files, user=draw.choice("ab"), stream=draw.random() < 0.5, **fields))
    elif act == "bad":
        asked.append(ask(rig, *files, files[0][:-30]))
    elif act == "count":
        messages = [{"role": "user", "content": [image_part(file) for file in files]}]
        asked.append(asyncio.create_task(rig.post("/tokenize", messages=messages)))
    elif act == "leave" and asked:
        draw.choice(asked).cancel()
    elif act == "step":
        rig.core.step()
    elif act in ("fail", "abort", "hand") and rig.core.added:
        await _end(act, draw, rig)


async def _end(act: str, draw: random.Random, rig: AppRig) -> None:
    request = draw.choice(rig.core.added)
    if act == "fail":
        rig.core.on_event(RequestFailed(request.id, RequestError("drawn", status=503)))
    elif act == "abort":
        numbers = rig.engine._requests.by_number
        if request.id in numbers:
            await rig.engine.abort(numbers[request.id].reader.name)
    else:
        with contextlib.suppress(RequestError):
            group, _ = await rig.engine.continue_request(
                HandedRequest(request, "again", ANY_WEIGHTS)
            )
            if draw.random() < 0.5:
                group.close()
