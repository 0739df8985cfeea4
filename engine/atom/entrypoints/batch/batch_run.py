"""A run of `atom batch` over a file of requests, each answered by the server's own application.

A run that ends early is continued by the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from atom.config import Config
from atom.entrypoints.api_server import build_app
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.request_lines.asgi_call import post
from atom.entrypoints.request_lines.batch_lines import AnswerFile, BatchRequest, lines_of
from atom.entrypoints.request_lines.line_run import BatchCounts, LineRun, LineTurns
from atom.errors import ConfigError, EngineDeadError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.engine_core_mgr import CoreManager
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.wire.core_port import CoreFactory

_MOST_BYTES = 2**30  # of lines that are read and not yet answered


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

            async def ask(request: BatchRequest) -> tuple[int, bytes]:
                status, body = await post(app, request.url, request.body)
                if engine.status.state is EngineState.DEAD:  # no answer to it: ask it again
                    raise EngineDeadError(
                        f"{engine.status.reason}; start the same command again to go on"
                    )
                return status, body

            turns = LineTurns(most_at_once, _MOST_BYTES)
            run = LineRun(ask, answers, lines_of(files.requests), told, turns)
            return await run.run(most_at_once)
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
        TimeRemainingColumn(),
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
