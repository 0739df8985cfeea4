"""Long texts wait for threads, which clients share out among them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from atom.errors import EngineDeadError
from atom.model_engine.front.async_text import AsyncText
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from tests.support.waiting import HANG_SECONDS

LONG = "x" * 10_000


class Held:
    """A processor whose tokenizer holds every long text until `gate` is set. other_begun: one that
    ends with a "b" was taken up."""

    def __init__(self) -> None:
        self.inputs = self
        self._loop = asyncio.get_running_loop()
        self.other_begun = asyncio.Event()
        self.gate = threading.Event()

    def tokenize(self, prompt: str, **_: Any) -> list[int]:
        if prompt.endswith("b"):
            self._loop.call_soon_threadsafe(self.other_begun.set)
        if len(prompt) > len(LONG):
            assert self.gate.wait(HANG_SECONDS)
        return [len(prompt)]


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    held = Held()
    yield held
    held.gate.set()


async def test_one_clients_long_texts_leave_a_thread_for_anothers(held: Held) -> None:
    text = AsyncText(cast("InputOutputProcessor", held))
    waiting = [
        asyncio.create_task(text.tokenize([LONG + "a"], "many", add_special_tokens=False))
        for _ in range(100)
    ]
    await asyncio.sleep(0)
    mine = asyncio.create_task(text.tokenize([LONG + "b"], "one", add_special_tokens=False))
    async with asyncio.timeout(HANG_SECONDS):
        await held.other_begun.wait()
    assert not any(task.done() for task in waiting), "before any of the other's has ended"
    held.gate.set()
    assert await mine == [[len(LONG) + 1]]
    assert len(await asyncio.gather(*waiting)) == 100
    text.close()


async def test_a_short_text_waits_for_no_thread(held: Held) -> None:
    text = AsyncText(cast("InputOutputProcessor", held))
    assert await text.tokenize(["short"], "one", add_special_tokens=False) == [[5]]
    text.close()


async def test_what_waits_for_a_thread_is_told_of_the_end(held: Held) -> None:
    text = AsyncText(cast("InputOutputProcessor", held))
    waiting = [
        asyncio.create_task(text.tokenize([LONG + "a"], "many", add_special_tokens=False))
        for _ in range(100)
    ]
    await asyncio.sleep(0)
    text.close()
    held.gate.set()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(end, EngineDeadError) for end in ends)
    assert all(isinstance(end, (list, EngineDeadError)) for end in ends)
