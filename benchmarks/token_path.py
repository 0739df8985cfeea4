"""What a streamed token costs between engine core and client: the HTTP server without a model.

    python -m benchmarks.token_path [--streams 1 32 256] [--step-ms 30]

A server of ours in a process of its own, over a core that answers at once: every step it gives each
open request one token, packed and encoded as an EngineCore's. `us_per_token` is the server process'
processor time (decoding, detokenising, JSON, HTTP, the kernel's share of sending) over the tokens;
requests' beginnings and ends are in it. Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from atom.config import Config, EngineOptions, build_config
from atom.entrypoints.http.listener import listen
from atom.entrypoints.metrics_exchange import MetricsExchange, ServerNumbers
from atom.entrypoints.server.http_process import HttpProcess
from atom.entrypoints.server.server_options import ServerOptions
from atom.entrypoints.server_parts import ListenOptions
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.request_stream import reader_limits
from atom.model_engine.request import FinishReason, Request
from atom.model_engine.wire.core_port import CoreEvent
from atom.model_engine.wire.engine_protocol import (
    EngineReport,
    FinishedRow,
    StreamBody,
    decode,
    encode,
)
from benchmarks.engines.server_process import end
from benchmarks.http_load import run_load
from benchmarks.server import OPTIONS, SHAPE, body_of, model_folder, report, work_of
from benchmarks.workloads.shapes import SHAPES

STREAMS = (1, 32, 256)
STEP_MS = 30.0
ROUNDS = 5


class PacedCore:
    """CorePort without a model: one token for every open request each `step_seconds`."""

    def __init__(
        self, config: Config, on_event: Callable[[CoreEvent], None], step_seconds: float
    ) -> None:
        self._config = config
        self._on_event = on_event
        self._step_seconds = step_seconds
        self._left: dict[int, int] = {}  # request → tokens still to give
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._random = np.random.default_rng(0)

    def start(self) -> None:
        self._on_event(_ready_message(self._config))
        self._thread.start()

    def add_requests(self, requests: Sequence[Request]) -> None:
        with self._changed:
            for request in requests:
                assert request.params.max_tokens is not None
                self._left[request.id] = request.params.max_tokens
            self._changed.notify()

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        with self._changed:
            for request_id in request_ids:
                self._left.pop(request_id, None)

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        raise AssertionError("the load calls no utility")

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._left) or self._closing)
                if self._closing:
                    return
                frames = encode(self._step())
            body = decode(frames)
            assert isinstance(body, StreamBody)
            self._on_event(body)
            due = max(due + self._step_seconds, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def _step(self) -> StreamBody:
        request_ids = np.fromiter(self._left, np.int64, len(self._left))
        vocab_size = SHAPES[SHAPE]["vocab_size"]
        tokens = self._random.integers(0, vocab_size, len(request_ids), dtype=np.int32)
        ended = [request_id for request_id, left in self._left.items() if left == 1]
        self._left = {key: left - 1 for key, left in self._left.items() if left > 1}
        rows = [FinishedRow(each, FinishReason.LENGTH, "max_tokens", 0) for each in ended]
        return StreamBody(request_ids.tobytes(), tokens.tobytes(), rows)


def _ready_message(config: Config) -> EngineReport:
    """READY, of an engine that has no sizes."""
    scheduler = config.scheduler
    return EngineReport(
        model=config.model.served_name,
        architecture=config.model.architecture,
        device="none",
        dtype="float32",
        kv_cache_dtype="float32",
        backends={},
        block_size=config.cache.block_size,
        num_blocks=0,
        max_model_len=config.model.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        weights_bytes=0,
        peak_bytes=0,
        kv_cache_bytes=0,
        kv_bytes_per_token=0,
        kv_tokens=0,
        total_memory_bytes=0,
        limited_by="memory",
        concurrency=[],
        tensor_parallel_size=1,
        data_parallel_size=1,
        version="0",
    )


class PacedEngine:
    """EngineSource over a PacedCore."""

    def __init__(self, options: ServerOptions, step_seconds: float) -> None:
        self._options = options
        self._step_seconds = step_seconds

    async def open(
        self, show: Callable[[str, float], None], expect: Callable[[int], None]
    ) -> AsyncLLMEngine:
        return AsyncLLMEngine(
            build_config(self._options.engine),
            core_factory=lambda config, on_event: PacedCore(config, on_event, self._step_seconds),
            reader_limits=reader_limits(self._options.limits.reader_timeout_seconds),
        )

    def exchange(self, numbers: Callable[[], ServerNumbers]) -> MetricsExchange | None:
        return None


def serve(folder: str, step_seconds: float) -> int:
    """The server process: prints its port once it serves, ends with SIGTERM."""
    options = ServerOptions(
        engine=EngineOptions.of(model=folder, **OPTIONS),
        listen=ListenOptions(host="127.0.0.1", port=0, access_log=False),
    )
    with (
        contextlib.closing(listen("127.0.0.1", 0, reader_timeout_seconds=60.0)) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        port = listener.getsockname()[1]

        async def run() -> int:
            process = HttpProcess(
                options,
                listener,
                PacedEngine(options, step_seconds),
                stop_signals=(signal.SIGTERM,),
                announce=lambda *_: print(port, flush=True),
            )
            return await process.run()

        return runner.run(run())


@contextlib.contextmanager
def server_process(folder: Path, step_seconds: float) -> Iterator[tuple[int, psutil.Process]]:
    """Start a server; yields (port, process)."""
    command = [sys.executable, "-m", "benchmarks.token_path", "--serve", str(folder)]
    process = subprocess.Popen(
        [*command, "--step-ms", str(step_seconds * 1e3)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        end(process, 10.0)


def measure(all_streams: Sequence[int], step_seconds: float) -> dict[int, dict[str, float]]:
    results = {}
    with (
        model_folder() as folder,
        server_process(folder, step_seconds) as (port, process),
    ):
        for streams in all_streams:
            works = work_of(streams)
            bodies = [body_of(work) for work in works]
            expected = [work.output_tokens for work in works]
            run_load(port, bodies, expected)  # warm
            rounds = [_one_round(process, port, bodies, expected) for _ in range(ROUNDS)]
            results[streams] = min(rounds, key=lambda result: result["us_per_token"])
    return results


def _one_round(
    process: psutil.Process, port: int, bodies: list[str], expected: list[int]
) -> dict[str, float]:
    before = process.cpu_times()
    result = run_load(port, bodies, expected)
    after = process.cpu_times()
    tokens = sum(expected)
    user, system = after.user - before.user, after.system - before.system
    return {
        "tokens": tokens,
        "us_per_token": (user + system) / tokens * 1e6,
        "user_us": user / tokens * 1e6,
        "system_us": system / tokens * 1e6,
        "events_per_token": len(result.gap_seconds) / tokens,
        "failures": len(result.failures),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--step-ms", type=float, default=STEP_MS)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.step_ms / 1e3)
    return report(measure(args.streams, args.step_ms / 1e3))


if __name__ == "__main__":
    sys.exit(main())
