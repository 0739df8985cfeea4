"""Lives of engines whose ranks are processes: requests that come, are given up, drained or cut off
by a kill, from a seed. What must hold at every end is checked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from atom.config import Config
from atom.errors import EngineDeadError, RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.processes import children_of, command_of
from tests.support.waiting import eventually, within

LONGEST = 120  # tokens of an answer
_MODULES = ("atom.model_engine.core_main", "atom.model_engine.executor.tensor_parallel.rank_main")
_PROMPTS = ([5, 6, 7], [9] * 17, list(range(3, 60)), [7, 7, 8] * 11)
_WAYS: tuple[dict[str, float | int], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5},
)


class AnswerBook:
    """What one rank says to each prompt, in each way."""

    def __init__(self, model: str, **options: int) -> None:
        alone = CoreDriver(model, **options)
        asked = [(prompt, _params(way, LONGEST)) for prompt in _PROMPTS for way in _WAYS]
        self._answers = alone.generate_each(asked)

    def answer(self, prompt: int, way: int) -> list[int]:
        return self._answers[prompt * len(_WAYS) + way]


@dataclass
class _Ask:
    """after: tokens that all have got when it is sent; gives_up: own tokens behind which its reader
    leaves."""

    prompt: int
    way: int
    max_tokens: int
    after: int
    gives_up: int | None
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.tokens: list[int] = []


class GroupLife:
    def __init__(self, config: Config, book: AnswerBook, seed: int) -> None:
        self._engine = AsyncLLMEngine(config)
        self._book = book
        self._draw = draw = random.Random(seed)
        self._asks = sorted(
            (_draw_ask(draw) for _ in range(draw.choice((1, 4, 8, 12)))), key=lambda ask: ask.after
        )
        self._seen = self._open = 0
        self._news = asyncio.Condition()
        self._processes: list[psutil.Process] = []

    async def drained(self) -> None:
        """Some requests are answered; those behind the drain's begin are refused."""
        await self._start()
        count = self._draw.randint(1, len(self._asks))
        taken, late = self._asks[:count], self._asks[count:]
        async with asyncio.TaskGroup() as tasks:
            await self._send(tasks, taken)
            drain = asyncio.create_task(self._engine.drain(3600.0))
            await asyncio.sleep(0)
            for ask in late:
                self._open += 1
                await self._ask(ask)
                assert isinstance(ask.error, RequestError), ask
                assert "shutting down" in str(ask.error)
            assert await within(drain, "the end of the drain") == 0
        for ask in taken:
            self._check_whole(ask)
        await self._check_blocks()
        await self._end()

    async def killed(self) -> None:
        """One process is gone: whoever waits hears of it by name, and nothing is left."""
        await self._start()
        victim = self._draw.choice(self._processes)
        after = self._draw.choice((0, 1, self._draw.randint(0, 400)))
        async with asyncio.TaskGroup() as tasks:
            sending = asyncio.create_task(self._send(tasks, self._asks))
            await self._until(lambda: self._seen >= after or (sending.done() and not self._open))
            victim.send_signal(signal.SIGKILL)
            reason = await within(self._engine.wait_dead(), "news of the end")
            await within(sending, "the last request's fate")
        assert f"(pid {victim.pid}) was killed by signal 9" in reason
        for ask in self._asks:
            if ask.error is None:
                self._check_whole(ask)
            else:
                assert isinstance(ask.error, EngineDeadError), ask
                assert reason in str(ask.error)
                assert ask.tokens == self._book.answer(ask.prompt, ask.way)[: len(ask.tokens)]
        await self._end()

    # ---- steps of a life ----------------------------------------------------------------------

    async def _start(self) -> None:
        before = {process.pid for process in _ranks()}
        await self._engine.start()
        await within(self._engine.wait_ready(), "a group that is ready")
        self._processes = [process for process in _ranks() if process.pid not in before]

    async def _send(self, tasks: asyncio.TaskGroup, asks: Sequence[_Ask]) -> None:
        for ask in asks:
            await self._until(lambda ask=ask: self._seen >= ask.after or not self._open)
            self._open += 1
            tasks.create_task(self._ask(ask))

    async def _ask(self, ask: _Ask) -> None:
        params = _params(_WAYS[ask.way], ask.max_tokens)
        try:
            outputs = self._engine.generate(_PROMPTS[ask.prompt], params)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    ask.tokens += output.output_tokens
                    await self._tell(len(output.output_tokens))
                    if ask.gives_up is not None and len(ask.tokens) >= ask.gives_up:
                        return
        except (EngineDeadError, RequestError) as error:
            ask.error = error
        finally:
            self._open -= 1
            await self._tell(0)

    async def _tell(self, tokens: int) -> None:
        async with self._news:
            self._seen += tokens
            self._news.notify_all()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._news:
            await within(self._news.wait_for(condition), "tokens")

    async def _check_blocks(self) -> None:
        def free() -> bool:
            ranks = self._engine.stats_by_rank.values()
            return bool(ranks) and all(rank.stats.kv_blocks_used == 0 for rank in ranks)

        await eventually(free, "every block is free")

    async def _end(self) -> None:
        await self._engine.shutdown()
        for process in self._processes:
            await eventually(lambda process=process: not process.is_running(), f"end of {process}")

    def _check_whole(self, ask: _Ask) -> None:
        expected = self._book.answer(ask.prompt, ask.way)
        assert ask.error is None
        if ask.gives_up is None:
            assert ask.tokens == expected[: ask.max_tokens]
        else:
            assert ask.tokens == expected[: len(ask.tokens)]


def _params(way: dict[str, float | int], max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **way)  # type: ignore[arg-type]


def _draw_ask(draw: random.Random) -> _Ask:
    return _Ask(
        prompt=draw.randrange(len(_PROMPTS)),
        way=draw.randrange(len(_WAYS)),
        max_tokens=draw.randint(1, LONGEST),
        after=draw.choice((0, draw.randint(0, 300))),
        gives_up=draw.randint(1, LONGEST) if draw.random() < 0.2 else None,
    )


def _ranks() -> list[psutil.Process]:
    """Processes of engines that this one has started."""
    children = children_of(recursive=True)
    return [child for child in children if set(_MODULES) & set(command_of(child).split())]
