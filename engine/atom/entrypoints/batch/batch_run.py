"""A run over a file of requests: so many at once, each answered by the server's own application.

Lines are read as they are asked, so that a file may be of any length; answers come in the order in
which they are complete. A run that ends early is continued by the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from starlette.types import ASGIApp

from atom.config import Config
from atom.entrypoints.api_server import build_app
from atom.entrypoints.batch.asgi_call import post
from atom.entrypoints.batch.batch_lines import (
    AnswerFile,
    answer_line,
    custom_id_of,
    lines_of,
    read_request,
)
from atom.entrypoints.openai.state import ServerState
from atom.errors import ConfigError, EngineDeadError, RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.wire.core_port import CoreFactory

_LEAST_ERROR = 400


@dataclass(frozen=True, slots=True)
class BatchFiles:
    requests: Path
    answers: Path

    def check(self) -> None:
        """Raises `ConfigError` before a model is opened in vain."""
        if not self.requests.is_file():
            raise ConfigError(f"--input-file {self.requests}: there is no such file")
        if self.answers.exists() and self.answers.samefile(self.requests):
            raise ConfigError("--output-file is the input file; name another one")
        AnswerFile(self.answers).close()


@dataclass(slots=True)
class BatchCounts:
    """Count lines: passed_over, because an earlier run answered them; failed, those answered by an
    error included."""

    answered: int = 0
    failed: int = 0
    passed_over: int = 0


@dataclass(slots=True)
class _Run:
    app: ASGIApp
    engine: AsyncLLMEngine
    answers: AnswerFile
    lines: Iterator[tuple[int, bytes]]
    told: Callable[[BatchCounts], None]
    counts: BatchCounts = field(default_factory=BatchCounts)
    seen: set[str] = field(default_factory=set)

    async def work(self) -> None:
        """Answer line after line, until none is left."""
        for number, line in self.lines:
            await self._answer(number, line)
            self.told(self.counts)

    async def _answer(self, number: int, line: bytes) -> None:
        try:
            request = read_request(line, number)
        except RequestError as error:
            self.counts.failed += 1
            self.answers.refuse(custom_id_of(line), str(error))
            return
        if request.custom_id in self.seen:
            self.counts.failed += 1
            message = f"line {number}: custom_id {request.custom_id!r} is another line's"
            self.answers.refuse(None, message)
            return
        self.seen.add(request.custom_id)
        if request.custom_id in self.answers.answered:
            self.counts.passed_over += 1
            return
        status, body = await post(self.app, request.url, request.body)
        if self.engine.status.state is EngineState.DEAD:  # no answer to this request: ask it again
            raise EngineDeadError(
                f"{self.engine.status.reason}; start the same command again to go on"
            )
        self.answers.append(answer_line(request.custom_id, status, body))
        if status < _LEAST_ERROR:
            self.counts.answered += 1
        else:
            self.counts.failed += 1


async def answer_file(
    config: Config,
    processor: InputOutputProcessor,
    files: BatchFiles,
    *,
    names: tuple[str, ...],
    most_at_once: int,
    told: Callable[[BatchCounts], None],
    core_factory: CoreFactory = CoreManager,
) -> BatchCounts:
    """Answer all unanswered requests. names: requests' names of the model. told: called with the
    counts after each line. Raises `AtomError` if the run cannot continue."""
    answers = AnswerFile(files.answers)
    try:
        async with AsyncLLMEngine(config, processor, core_factory=core_factory) as engine:
            app = build_app(ServerState(engine=engine, names=names))
            run = _Run(app, engine, answers, lines_of(files.requests), told)
            async with asyncio.TaskGroup() as workers:
                for _ in range(most_at_once):
                    workers.create_task(run.work())
            return run.counts
    except BaseExceptionGroup as group:  # the first that ended a worker ends the run
        raise group.exceptions[0] from None
    finally:
        answers.close()


@contextlib.contextmanager
def print_progress(files: BatchFiles) -> Iterator[Callable[[BatchCounts], None]]:
    """Show the run's progress on standard error, and its result at the end."""
    total = sum(1 for _ in lines_of(files.requests))
    last = BatchCounts()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("answering", total=total)

        def told(counts: BatchCounts) -> None:
            nonlocal last
            last = counts
            done = counts.answered + counts.failed + counts.passed_over
            bar.update(task, completed=done)

        yield told
    console.print(
        f"{last.answered} answered, {last.failed} failed, {last.passed_over} answered before, of "
        f"{total} requests; {files.answers}",
        highlight=False,
        soft_wrap=True,
    )
