"""Count the functions that a streamed chat request passes up to its first token.

    python -m tools.request_hops [--list]

HTTP application, engine and a tiny model in one process, on the processor: what separate processes
do by a socket is a call here. The second request is recorded by `sys.setprofile`, on every thread,
from the application's entry to the event that carries the first text.

A *hop* is a function of the project that hands the request, or its token, on: it stands on the
stack where the request is read, rendered, tokenised, queued, batched, computed, sampled, taken back
or told (`HANDED_ON`). What a hop asks others for, a check or a size, is none: the request is not
past it. Exits with 1 above MOST_HOPS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from atom.config import Config, EngineOptions, build_config
from atom.entrypoints.api_server import build_app
from atom.entrypoints.openai.state import ServerState
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.request import Request
from atom.model_engine.wire.core_port import CoreEvent
from atom.model_engine.wire.engine_protocol import RankStats
from benchmarks.engines.offline_engine import OfflineEngine
from benchmarks.server import OPTIONS, model_folder

PROJECT = str(Path(__file__).resolve().parents[1] / "engine" / "atom")
# Seven of them give the parsing of a body and the rendering of a chat their turn beside the loop.
MOST_HOPS = 62
# Where the request, or its token, is handed on: to a library, a queue, the device or a reader.
HANDED_ON = frozenset(
    {
        "parse_body", "render_within_bounds", "Tokenizer.encode", "InputProcessor.build_requests",
        "OpenRequests.open", "WaitingQueue.add", "BatchBuilder.build", "InputBatch.prepare",
        "paged_attention", "sample", "PendingTokens.wait", "StepResult.message",
        "CoreEventHop.put", "CoreEventHop._take", "RequestGroup.put",
    }
)  # fmt: skip
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class Recorder:
    """Notes what stands on the stack wherever the request is handed on, while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.hops: dict[CodeType, str] = {}  # in the order of the request, and where each led
        self.handed_on: set[str] = set()
        self.functions: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.on or event != "call" or not _is_ours(frame.f_code):
            return
        self.functions.add(frame.f_code)
        name = frame.f_code.co_qualname
        if name in HANDED_ON and name not in self.handed_on:
            self.note(frame, name)

    def note(self, frame: FrameType | None, name: str) -> None:
        """Take every function on the stack from `frame` down for a hop."""
        self.handed_on.add(name)
        stack = []
        while frame is not None:
            if _is_ours(frame.f_code):
                stack.append(frame.f_code)
            frame = frame.f_back
        for code in reversed(stack):
            self.hops.setdefault(code, name)


class CoreInProcess:
    """A CorePort whose scheduler and model run on a thread of this process."""

    def __init__(
        self, config: Config, on_event: Callable[[CoreEvent], None], recorder: Recorder
    ) -> None:
        self._model, self._on_event, self._recorder = config.model.path, on_event, recorder
        self._changed = threading.Condition()
        self._new: list[Request] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def add_requests(self, requests: Sequence[Request]) -> None:
        if self._recorder.on:
            self._recorder.note(sys._getframe(), "CorePort.add_requests")
        with self._changed:
            self._new += requests
            self._changed.notify()

    def abort_requests(self, request_ids: Sequence[int]) -> None:
        pass  # every request here comes to its end

    def call_utility(self, call_id: int, method: str, args: Sequence[Any] = ()) -> None:
        raise AssertionError("a chat calls no utility")

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        engine = OfflineEngine(str(self._model), **OPTIONS)
        self._on_event(engine.report)
        while self._take_in(engine):
            result = engine.step() if engine.has_work() else None
            if result is not None and len(result.token_ids):
                stats = RankStats(rank=0, number=0, stats=engine.pipeline.stats())
                self._on_event(result.message(stats))
        engine.close()

    def _take_in(self, engine: OfflineEngine) -> bool:
        """Give the engine what has come, once there is work; False when it is to end."""
        with self._changed:
            if not engine.pipeline.has_requests():
                self._changed.wait_for(lambda: bool(self._new) or self._closing)
            new, self._new = self._new, []
        for request in new:
            engine.pipeline.add(request)
        return not self._closing


def record_chat() -> Recorder:
    """Record the second of two equal chats: the first finds every cache empty."""
    recorder = Recorder()
    threading.setprofile(recorder)  # of threads that start from now on
    try:
        asyncio.run(_record(recorder))
    finally:
        threading.setprofile(None)
    return recorder


async def _record(recorder: Recorder) -> None:
    with model_folder() as folder:
        template = folder / "template.jinja"
        template.write_text(_TEMPLATE)
        config = build_config(EngineOptions.of(model=str(folder), **OPTIONS))
        processor = InputOutputProcessor(config, chat_template_file=template)

        def make_core(config: Config, on_event: Callable[[CoreEvent], None]) -> CoreInProcess:
            return CoreInProcess(config, on_event, recorder)

        async with AsyncLLMEngine(config, processor, core_factory=make_core) as engine:
            app = build_app(ServerState(engine=engine))
            await _chat(app, recorder)
            recorder.on = True
            sys.setprofile(recorder)
            try:
                await _chat(app, recorder)
            finally:
                sys.setprofile(None)
    assert not recorder.on, "the second chat has brought no text"


async def _chat(app: Any, recorder: Recorder) -> None:
    """Ask for a stream and read it to its end, recording up to its first text."""
    asked = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 8}
    body = [json.dumps(asked).encode()]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "root_path": "",
        "query_string": b"", "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200, message
        if recorder.on and _has_text(message.get("body", b"")):
            recorder.note(sys._getframe(), "send")
            recorder.on = False

    await app(scope, receive, send)


def _has_text(body: bytes) -> bool:
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return any(choice["delta"].get("content") for choice in choices)


def _is_ours(code: CodeType) -> bool:
    """Return whether it is a function of the project, and no comprehension or lambda within one."""
    return code.co_filename.startswith(PROJECT) and not code.co_name.startswith("<")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print each hop with where it led")
    args = parser.parse_args()
    recorder = record_chat()
    missing = HANDED_ON - recorder.handed_on
    if missing:
        print(f"not passed, so not counted: {', '.join(sorted(missing))}; mend HANDED_ON")
        return 1
    if args.list:
        for code, name in recorder.hops.items():
            print(f"{name:32} {code.co_qualname}")
    hops, functions = len(recorder.hops), len(recorder.functions)
    print(f"hops of a chat request: {hops} (at most {MOST_HOPS}); functions that ran: {functions}")
    return int(hops > MOST_HOPS)


if __name__ == "__main__":
    sys.exit(main())
